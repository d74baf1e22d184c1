"""docs/trainer_faults.md names a test for every fault, and each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "trainer_faults.md"
ROWS = [line.strip("|").split("|") for line in TABLE.read_text().splitlines() if "::" in line]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip()[:40])
def test_the_tests_of_a_fault_exist(row):
    fault, defence, named = (cell.strip() for cell in row)
    assert fault and defence
    tests = re.findall(r"`([\w/]+\.py)::(test_\w+)`", named)
    assert len(tests) == named.count("::") > 0
    for file, test in tests:
        assert f"def {test}(" in (TESTS / file).read_text(), f"{file}::{test}"


def test_the_faults_are_those_of_the_reports():
    reports = {found for row in ROWS for found in re.findall(r"[\w-]+#\d+", row[0])}
    assert len(ROWS) == 15 and len(reports) == 17
