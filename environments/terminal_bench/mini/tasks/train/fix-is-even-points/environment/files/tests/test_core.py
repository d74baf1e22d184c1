from game.core import total_prices, count_above_scores, top_files, accept_cards


def test_total_prices_0():
    assert total_prices([13, 9, 21, 15]) == 58


def test_total_prices_1():
    assert total_prices([18, 9, -3, -5]) == 19


def test_count_above_scores_0():
    assert count_above_scores([4, 11], 14) == 0


def test_count_above_scores_1():
    assert count_above_scores([10, 20, -7, 10], 10) == 1


def test_top_files_0():
    assert top_files([3, 17]) == 17


def test_top_files_1():
    assert top_files([6, -9, 16, -6, 2]) == 16


def test_accept_cards_0():
    assert accept_cards(7) == True


def test_accept_cards_1():
    assert accept_cards(4) == False
