"""The gate's reference file: what is read, what is refused, what counts as moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.check import REFERENCE, check
from harness.gate import reference, speeds, virtual_figures
from harness.gate.reference import Entry, Measured
from harness.hardware import cores, cpu_model, cpu_revision
from harness.protocols import UsageError

EXACT = Entry(665.304323566, "exact", "s")
RATIO = Entry(1.25, "ratio", "x the same adds", 0.08)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ci.json"
    figures = {"b": RATIO, "a": EXACT, "zero": Entry(0.0, "exact", "versions")}
    reference.write(path, figures, Measured("here", "abc"))
    assert reference.measured(path) == Measured("here", "abc")
    found = reference.read(path)
    assert found == {"a": EXACT, "b": RATIO, "zero": Entry(0.0, "exact", "versions")}
    assert [line.split('"')[1] for line in path.read_text().splitlines()[5:8]] == ["a", "b", "zero"]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("{", "Expecting property name"),
        ("[]", "it must have figures, ratios_measured_on, ratios_of_commit, schema_version, and"),
        ({"schema_version": 1}, "schema_version 1, this code has 3"),
        ({"ratios_of_commit": 7}, "ratios_of_commit 7 is no commit"),
        ({"figures": {}}, "figures must map names to entries"),
        ({"figures": {"a": 3}}, "a: 3 is no entry"),
        ({"figures": {"a": {"value": 1, "rule": "exact"}}}, "a: an entry has value, unit and rule"),
        ({"figures": {"a": {"value": 1, "rule": "about", "unit": "s"}}}, "and rule about"),
        ({"figures": {"a": {"value": 1, "rule": "ratio", "unit": "x"}}}, "a: an entry has"),
        (
            {"figures": {"a": {"value": None, "rule": "exact", "unit": "s"}}},
            "a: value None is no finite number",
        ),
        (
            {"figures": {"a": {"value": 1, "rule": "ratio", "unit": "x", "tolerance": 0}}},
            "a: a ratio is above 0, and its tolerance between 0 and 1",
        ),
    ],
)
def test_a_damaged_reference_is_one_line(damage: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "ci.json"
    figures = {"a": {"value": 1, "rule": "exact", "unit": "s"}}
    whole = {
        "schema_version": 3, "ratios_measured_on": "here", "ratios_of_commit": None,
        "figures": figures,
    }  # fmt: skip
    path.write_text(damage if isinstance(damage, str) else json.dumps(whole | damage))
    with pytest.raises(UsageError) as refused:
        reference.read(path)
    assert says in str(refused.value)
    assert str(refused.value).startswith(f"reference={path}: ")
    assert str(refused.value).endswith("--update") and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("expected", "found", "says"),
    [
        (EXACT, Entry(665.304323566 * (1 + 1e-12), "exact", "s"), None),
        (EXACT, Entry(665.3043236, "exact", "s"), "665.304323566 -> 665.3043236 s"),
        (Entry(0.0, "exact", "versions"), Entry(1.0, "exact", "versions"), "from nothing"),
        (RATIO, Entry(1.349, "ratio", "x the same adds", 0.08), None),
        (RATIO, Entry(1.351, "ratio", "x the same adds", 0.08), "+8.080%; rule: more than 8.0%"),
        (RATIO, Entry(1.149, "ratio", "x the same adds", 0.08), "-8.080%"),
        (RATIO, None, "this run has none"),
        (None, RATIO, "the reference does not have it"),
        (
            RATIO,
            Entry(1.25, "ratio", "x the same adds", 0.1),
            "the reference says ('ratio', 'x the same adds', 0.08)",
        ),
    ],
)
def test_what_has_moved(expected: Entry | None, found: Entry | None, says: str | None) -> None:
    told = reference.moved("name", expected, found)
    assert told is None if says is None else says in str(told)


def test_the_committed_reference_is_of_this_code() -> None:
    """Every ratio and every job; seconds of a machine are not in it."""
    figures = reference.read(REFERENCE)
    ratios = {name: entry for name, entry in figures.items() if entry.rule == "ratio"}
    assert {n: (e.unit, e.tolerance) for n, e in ratios.items()} == {
        name: (speed.unit, speed.tolerance) for name, speed in speeds.SPEEDS.items()
    }
    assert all(entry.unit.startswith("x ") and entry.tolerance < 0.15 for entry in ratios.values())
    exact = figures.keys() - ratios.keys()
    assert {name.split("/")[0] for name in exact} == {"virtual"}
    assert {name.split("/")[1] for name in exact} == set(virtual_figures.JOBS)


def test_ratios_of_another_processor_need_the_code_that_they_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """One of the same name is another one where the system tells which of them it is."""
    monkeypatch.setattr("harness.check.psutil.cpu_percent", lambda seconds: 0.0)
    name = f"{cpu_model()}, {cores()} cores"
    path = tmp_path / "ci.json"
    for commit, why in ((None, "does not say which commit"), ("f" * 40, "does not have commit")):
        measured = Measured(name if cpu_revision() else "another", commit)
        reference.write(path, {"speed/clock": RATIO}, measured)
        assert check([f"reference={path}", "only=speed/clock"]) == []
        said = capsys.readouterr().err
        assert "NOT judged" in said and why in said and cpu_revision() in said
        assert "0 figures, 0 moved" in said


def test_a_busy_machine_judges_no_ratio(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("harness.check.psutil.cpu_percent", lambda seconds: 21.0)
    assert check(["only=speed/clock"]) == []
    assert "NOT judged: other work keeps 21 % of this machine busy" in capsys.readouterr().err
