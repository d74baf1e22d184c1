"""Time to equal performance: seconds after equally many updates, paired by seed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from results import equal_performance
from results.equal_performance import markdown, pairs
from results.load import load

BUDGET = {"kind": "updates", "limit": 4, "spent": 4}


def two_seeds(make_run, **more) -> None:
    for seed, (sync_s, stream_s) in enumerate([(12.0, 8.0), (10.0, 8.0)]):
        common = {"seed": seed, "budget": BUDGET, "clock": "virtual", **more}
        make_run(f"a{seed}", "sync", update_s=sync_s, final=0.5, **common)
        make_run(f"b{seed}", "stream", update_s=stream_s, final=0.5 + 0.01 * seed, **common)


def test_seconds_after_equally_many_updates_and_their_ratio(make_run, tmp_path: Path) -> None:
    two_seeds(make_run)
    runs = load(tmp_path / "runs").runs
    half, whole = pairs(runs, "stream", "sync")
    assert (half.updates, half.seconds, half.rates) == (2, (22.0, 16.0), (0.375, 0.375))
    assert (whole.updates, whole.seconds) == (4, (44.0, 32.0))
    assert whole.ratio.value == pytest.approx(math.sqrt(1.5 * 1.25)) and whole.ratio.runs == 2
    assert whole.difference.value == pytest.approx(0.5)
    table = markdown([half, whole], "stream", "sync", runs[0])
    assert table.startswith("VIRTUAL: ") and table.count("| VIRTUAL: ") == 2


def test_what_was_measured_is_not_called_virtual(make_run, tmp_path: Path) -> None:
    two_seeds(make_run, clock="wall")
    runs = load(tmp_path / "runs").runs
    assert "VIRTUAL" not in markdown(pairs(runs, "stream", "sync"), "stream", "sync", runs[0])


def test_learning_rates_of_one_schedule_are_two_rows_not_two_samples(
    make_run, tmp_path: Path
) -> None:
    for rate in (1e-4, 3e-4):
        own = {"schedule": {"name": "stream", "learning_rate": rate}}
        make_run(f"b{rate}", "stream", config=own, budget=BUDGET)
    make_run("a", "sync", budget=BUDGET)
    runs = load(tmp_path / "runs").runs
    with pytest.raises(ValueError, match=r"stream: one of .*learning_rate=0\.0001"):
        pairs(runs, "stream", "sync")
    label = "stream, release=reward, schedule.learning_rate=0.0003"
    assert [p.updates for p in pairs(runs, label, "sync")] == [2, 4]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"budget": {"kind": "device_s", "limit": 80.0, "spent": 80.0}}, "budget.kind=device_s"),
        ({"seed": 7}, "no seed has both"),
    ],
)
def test_what_is_no_comparison_is_one_line(
    change, says: str, make_run, tmp_path: Path, monkeypatch, capsys
) -> None:
    make_run("b", "stream", budget=BUDGET)
    make_run("a", "sync", **{"budget": BUDGET, "seed": 0, **change})
    monkeypatch.setattr("sys.argv", ["equal_performance", str(tmp_path / "runs")])
    assert equal_performance.main() == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
