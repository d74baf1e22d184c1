from farm.data import diff_items, first_coins, all_over_prices, convert_items


def test_diff_items_0():
    assert diff_items(1, 3) == 2


def test_diff_items_1():
    assert diff_items(2, 2) == 0


def test_first_coins_0():
    assert first_coins([18, 1, 21, 11, 7]) == 18


def test_first_coins_1():
    assert first_coins([-5, -7, 2]) == -5


def test_all_over_prices_0():
    assert all_over_prices([15, 9, 5], 15) == False


def test_all_over_prices_1():
    assert all_over_prices([8, 9, -1], 8) == False


def test_convert_items_0():
    assert convert_items(12, 7) == 151


def test_convert_items_1():
    assert convert_items(2, 3) == 27
