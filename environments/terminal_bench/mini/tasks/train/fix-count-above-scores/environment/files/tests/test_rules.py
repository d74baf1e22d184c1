from bank.rules import smallest_pages, top_steps, count_upto_items


def test_smallest_pages_0():
    assert smallest_pages([8, 15, 3]) == 3


def test_smallest_pages_1():
    assert smallest_pages([-9, -2]) == -9


def test_top_steps_0():
    assert top_steps([19, 2, 12, 10]) == 19


def test_top_steps_1():
    assert top_steps([6, 20]) == 20


def test_count_upto_items_0():
    assert count_upto_items([6, 7], -1) == 0


def test_count_upto_items_1():
    assert count_upto_items([-9, -1, 16, 17, -3], 2) == 3
