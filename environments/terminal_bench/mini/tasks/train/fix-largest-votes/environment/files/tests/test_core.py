from park.core import sum_cards, mean_goals, last_items, pick_even_points


def test_sum_cards_0():
    assert sum_cards([21, 6]) == 27


def test_sum_cards_1():
    assert sum_cards([17, 20]) == 37


def test_mean_goals_0():
    assert mean_goals([19, 18, 3, 13, 1]) == 10.8


def test_mean_goals_1():
    assert mean_goals([20, 1, 7, 15, -8]) == 7.0


def test_last_items_0():
    assert last_items([16, 10, 6, 8, 13]) == 13


def test_last_items_1():
    assert last_items([5, 19, 18, -6, 0]) == 0


def test_pick_even_points_0():
    assert pick_even_points([21, 16, 8, 16, 14]) == [16, 8, 16, 14]


def test_pick_even_points_1():
    assert pick_even_points([17, 19]) == []
