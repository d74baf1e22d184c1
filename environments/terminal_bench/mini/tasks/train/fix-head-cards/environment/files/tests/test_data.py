from farm.data import top_users, average_boxes, head_cards


def test_top_users_0():
    assert top_users([13, 8]) == 13


def test_top_users_1():
    assert top_users([5, 7, 11, -1, 16]) == 16


def test_average_boxes_0():
    assert average_boxes([3, 4, 12]) == 6.333333333333333


def test_average_boxes_1():
    assert average_boxes([-5, 4]) == -0.5


def test_head_cards_0():
    assert head_cards([-6, 2, 18, -7], -5) == []


def test_head_cards_1():
    assert head_cards([8, 8, 18], -4) == []
