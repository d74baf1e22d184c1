from farm.rules import low_units, any_over_boxes


def test_low_units_0():
    assert low_units([9, 19, 11, 17]) == 9


def test_low_units_1():
    assert low_units([-5, 0, 15, 2]) == -5


def test_any_over_boxes_0():
    assert any_over_boxes([9, 3, 3, 10], 9) == True


def test_any_over_boxes_1():
    assert any_over_boxes([-4, 15, 15, -9], 6) == True
