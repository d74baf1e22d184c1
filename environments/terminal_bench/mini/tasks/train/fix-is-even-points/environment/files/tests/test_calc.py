from game.calc import low_users, gap_goals, is_even_points, convert_users


def test_low_users_0():
    assert low_users([11, 7, 19, 3]) == 3


def test_low_users_1():
    assert low_users([-5, 11, -5, 3, 10]) == -5


def test_gap_goals_0():
    assert gap_goals(5, -5) == 10


def test_gap_goals_1():
    assert gap_goals(6, 0) == 6


def test_convert_users_0():
    assert convert_users(10, 5) == 105


def test_convert_users_1():
    assert convert_users(1, 9) == 19
