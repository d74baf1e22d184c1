"""docs/isolation.md names a test for every threat, and each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "docs/isolation.md"


def rows() -> list[list[str]]:
    """Of the table of threats, without its head."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("| threat |"))
    found = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def defined_in(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def missing(table: list[list[str]]) -> list[str]:
    """What is wrong with the rows, a line each."""
    wrong = []
    for threat, *defences, named in table:
        names = re.findall(r"`([^`]+)`", named)
        if len(defences) != 2 or not defences[0] or not names:
            wrong.append(f"{threat}: no defence or no test")
        for name in names:
            file, _, test = name.partition("::")
            if not test.startswith("test_") or test not in defined_in(HERE / file):
                wrong.append(f"{threat}: there is no {name}")
    return wrong


def test_every_threat_names_tests_that_exist() -> None:
    table = rows()
    assert missing(table) == []
    assert len(table) > 25
    threats = " ".join(row[0] for row in table)
    for word in (
        *("fork bomb", "memory", "disk", "output", "standard input", "background", "no text"),
        *("SIGTERM", "network", "allowed hosts", "writes outside", "verifier's tests"),
        *("privileges", "containers, volumes, networks", "kill -9"),
    ):
        assert word in threats, word


def test_a_test_that_is_gone_is_noticed() -> None:
    good = "`sandbox/test_limits.py::test_no_network`"
    assert missing([["threat", "defence", "", good]]) == []
    for named in (good.replace("no_network", "gone"), good.replace("limits", "gone"), "none"):
        assert len(missing([["threat", "defence", "", named]])) == 1
