"""Accuracy in equal virtual time: paired by seed, and no more said than the seeds resolve."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import stdev

import pytest
from scipy.stats import t

from results import virtual_accuracy
from results.load import load
from results.virtual_accuracy import compare, markdown, seeds_within

STREAM, ASYNC = [0.50, 0.53, 0.51, 0.54], [0.48, 0.50, 0.49, 0.51]
POINTS = [2.0, 3.0, 2.0, 3.0]


def four_pairs(make_run, stream: list[float], other: list[float]) -> None:
    for seed, (a, b) in enumerate(zip(stream, other, strict=True)):
        make_run(f"s{seed}", "stream", seed, final=a, updates=8, clock="virtual")
        make_run(f"a{seed}", "async", seed, final=b, updates=12, clock="virtual")


def test_a_narrow_interval_off_zero_is_resolved(make_run, tmp_path: Path) -> None:
    four_pairs(make_run, STREAM, ASYNC)
    (found,) = compare(load(tmp_path / "runs").runs, "stream", 2.0)
    half = t.ppf(0.975, 3) * stdev(POINTS) / 2
    assert found.difference.value == pytest.approx(2.5)
    assert found.half_width == pytest.approx(half) and half < 2
    assert (found.verdict, found.updates) == ("resolved", (8, 12))
    table = markdown([found], "stream", "there", "7200 wall_clock_s")
    assert table.startswith("VIRTUAL: there") and "| VIRTUAL: async, max_staleness=4 | 4 |" in table


def test_a_wide_interval_resolves_nothing_and_says_what_would(make_run, tmp_path: Path) -> None:
    """The interval leaves out 0, and is still too wide for what was asked."""
    four_pairs(make_run, [0.70, 0.75, 0.72, 0.78], ASYNC)
    (found,) = compare(load(tmp_path / "runs").runs, "stream", 2.0)
    differences = [22.0, 25.0, 23.0, 27.0]
    needed = seeds_within(differences, 2.0)
    assert needed is not None and found.verdict == f"not resolved; about {needed} seeds would be " \
        "needed"  # fmt: skip

    def half(n: int) -> float:
        return t.ppf(0.975, n - 1) * stdev(differences) / math.sqrt(n)

    assert half(needed) <= 2 < half(needed - 1)


def test_one_pair_has_no_interval(make_run, tmp_path: Path) -> None:
    four_pairs(make_run, [0.9], [0.1])
    (found,) = compare(load(tmp_path / "runs").runs, "stream", 2.0)
    assert found.verdict.startswith("not resolved; one seed") and found.half_width is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"clock": "wall"}, "not in virtual time"),
        ({"final": None}, "nothing was evaluated"),
        ({"seed": 7}, "no other schedule has a run of the same seed"),
    ],
)
def test_what_is_no_comparison_is_one_line(
    change, says: str, make_run, tmp_path: Path, monkeypatch, capsys
) -> None:
    make_run("stream", "stream", clock="virtual")
    make_run("async", "async", **{"clock": "virtual", "seed": 0, **change})
    monkeypatch.setattr("sys.argv", ["virtual_accuracy", str(tmp_path / "runs")])
    assert virtual_accuracy.main() == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
