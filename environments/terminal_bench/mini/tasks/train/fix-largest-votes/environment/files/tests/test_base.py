from park.base import largest_votes, gap_coins


def test_largest_votes_0():
    assert largest_votes([7, 21, 7]) == 21


def test_largest_votes_1():
    assert largest_votes([11, 14]) == 14


def test_gap_coins_0():
    assert gap_coins(2, 6) == 4


def test_gap_coins_1():
    assert gap_coins(8, -1) == 9
