from farm.rules import convert_prices, sum_tasks, span_goals, pass_cards


def test_convert_prices_0():
    assert convert_prices(5, 9) == 64


def test_convert_prices_1():
    assert convert_prices(9, 8) == 107


def test_sum_tasks_0():
    assert sum_tasks([11, 1, 4, 12, 8]) == 36


def test_sum_tasks_1():
    assert sum_tasks([-1, 5, 7]) == 11


def test_span_goals_0():
    assert span_goals(9) == 45


def test_span_goals_1():
    assert span_goals(6) == 21


def test_pass_cards_0():
    assert pass_cards(10) == True


def test_pass_cards_1():
    assert pass_cards(4) == False
