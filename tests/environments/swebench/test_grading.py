"""What a verifier's log is checked for before swebench's report on it is believed."""

from __future__ import annotations

import pytest

from environments.swebench import grading
from environments.swebench.instance import END_TEST_OUTPUT, START_TEST_OUTPUT


def log(text: str) -> str:
    return f"+ : '{START_TEST_OUTPUT}'\n{text}\n+ CODE=0\n+ : '{END_TEST_OUTPUT}'\n"


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_a_test_reported_twice_is_seen_whatever_ends_the_line(end: str) -> None:
    twice = f"FAILED t.py::test_a - assert{end}PASSED t.py::test_a\nPASSED t.py::test_b"
    assert grading.contradictions(log(twice)) == ["t.py::test_a"]
    assert grading.contradictions(log(f"PASSED t.py::test_a{end}PASSED t.py::test_a")) == []


@pytest.mark.parametrize(
    ("text", "exit_code", "trouble"),
    [
        ("PASSED a\n2 passed", 0, ""),
        ("PASSED a\n2 passed, 1 skipped, 1 xfailed in 0.12s", 0, ""),
        ("PASSED a\n2 passed", 1, "ended with 1"),
        ("PASSED a\n2 passed", None, "ended with None"),
        ("PASSED a\nPASSED b", 0, "last line is 'PASSED b'"),
        ("PASSED a\n1 passed", 0, "last line is '1 passed'"),
        ("PASSED a\n1 failed, 2 passed", 0, "last line is '1 failed, 2 passed'"),
        ("", 0, "last line is ''"),
    ],
)
def test_a_clean_run_ends_well_and_counts_its_tests(
    text: str, exit_code: int | None, trouble: str
) -> None:
    said = grading.unclean(log(text), exit_code, 2)
    assert trouble in said
    assert bool(said) == bool(trouble)
