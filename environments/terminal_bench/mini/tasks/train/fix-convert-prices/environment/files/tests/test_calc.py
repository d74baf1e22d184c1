from farm.calc import area_rows, average_pages


def test_area_rows_0():
    assert area_rows(11, 1) == 11


def test_area_rows_1():
    assert area_rows(4, -2) == -8


def test_average_pages_0():
    assert average_pages([4, 4, 19, 7, 21]) == 11.0


def test_average_pages_1():
    assert average_pages([19, -7, 15]) == 9.0
