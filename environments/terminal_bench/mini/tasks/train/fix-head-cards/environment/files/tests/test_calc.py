from farm.calc import clamp_files, size_left_goals, smallest_nodes


def test_clamp_files_0():
    assert clamp_files(-1, 2, 4) == 2


def test_clamp_files_1():
    assert clamp_files(8, 0, 4) == 4


def test_size_left_goals_0():
    assert size_left_goals([6, 5, 4, 10, 6], 6) == 1


def test_size_left_goals_1():
    assert size_left_goals([15, 19, 3, 2, -6], 12) == 7


def test_smallest_nodes_0():
    assert smallest_nodes([11, 7, 13, 14, 10]) == 7


def test_smallest_nodes_1():
    assert smallest_nodes([8, 7, 13, 8, 17]) == 7
