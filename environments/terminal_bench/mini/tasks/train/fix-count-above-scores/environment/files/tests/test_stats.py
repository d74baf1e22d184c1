from bank.stats import first_files, any_over_orders, count_above_scores


def test_first_files_0():
    assert first_files([9, 21, 14, 6]) == 9


def test_first_files_1():
    assert first_files([-2, 13, -4, 8, 19]) == -2


def test_any_over_orders_0():
    assert any_over_orders([6, 6, 17], 2) == True


def test_any_over_orders_1():
    assert any_over_orders([18, 3], 18) == False


def test_count_above_scores_0():
    assert count_above_scores([16, -5, 15], 16) == 0


def test_count_above_scores_1():
    assert count_above_scores([-2, 11, -7], 3) == 1
