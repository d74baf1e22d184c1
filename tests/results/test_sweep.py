"""The sweep table: figures by hand, and what it does with runs that are not whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from results.sweep import load, resolution, rows, table


def leave(folder: Path, schedule: str, seed: int, update_s: float, final: float, **more) -> None:
    folder.mkdir(parents=True)
    summary = {
        "status": "finished", "schedule": schedule, "release": "reward", "seed": seed,
        "accuracy": {"initial": 0.3, "final": final},
        "time": {"per_update_s": update_s, "tail_s": 1.0}, "updates": 20,
        "budget": {"kind": "device_s", "limit": 360.0},
        "idle": {"learner": 0.5, "engine": 0.25, "devices": 0.375},
        "staleness": {"mean": 0.0, "max": 0, "violations": {"bound": 4}},
        "env": "swebench", "dataset": "mini", "policy": "tiny", "engine": "torch",
        "sandbox": "bubblewrap", "clock": "wall", "hardware": "cpu",
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary | more))


def test_figures_by_hand(tmp_path: Path):
    leave(tmp_path / "0", "sync", 0, 8.0, 0.5)
    leave(tmp_path / "1", "sync", 1, 10.0, 0.4)
    leave(tmp_path / "2", "stream", 0, 4.0, 0.5)
    leave(tmp_path / "3", "stream", 1, 10.0, 0.5)
    summaries, left_out = load(tmp_path)
    assert left_out == []
    sync, stream = rows(summaries)
    # Rises 20 and 10: mean 15, standard error sqrt(50) / sqrt(2) = 5.
    assert sync[:8] == (
        "sync", "360 device_s", "2", "20.0 ± 0.0", "30.0 % ± 0.0 %", "45.0 % ± 5.0 %",
        "15.0 ± 5.0", "9.00 ± 1.00",
    )  # fmt: skip
    assert sync[11:] == ("38 % ± 0 %", "0.00 ± 0.00 (0)", "1")
    assert stream[0] == "stream, release=reward"
    # Ratios 8/4 and 10/10: geometric mean sqrt(2).
    assert stream[-1] == "1.41 (1.00 to 2.00)"
    assert "clock=wall" in table(summaries).splitlines()[-1]


def test_unfinished_and_broken_runs_are_named_and_left_out(tmp_path: Path):
    leave(tmp_path / "0", "sync", 0, 8.0, 0.5)
    leave(tmp_path / "1", "sync", 1, 8.0, 0.5, status="interrupted")
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "summary.json").write_text("{")
    summaries, left_out = load(tmp_path)
    assert len(summaries) == 1
    assert [line.rsplit(": ", 1)[1] for line in left_out] == ["status interrupted", "not JSON"]
    assert rows(summaries)[0][4] == "30.0 %"  # one seed: no interval is invented


def test_nothing_to_show_is_one_clear_line(tmp_path: Path):
    with pytest.raises(ValueError, match="no finished run"):
        load(tmp_path)


def test_a_colocated_baseline_is_a_row_of_its_own(tmp_path: Path):
    """Two placements of one schedule are two schedules to compare with: never averaged."""
    leave(tmp_path / "0", "sync", 0, 8.0, 0.5, placement="disaggregated")
    leave(tmp_path / "1", "sync", 0, 5.0, 0.5, placement="colocated")
    apart, together = rows(load(tmp_path)[0])
    assert (apart[0], apart[7], apart[-1]) == ("sync", "8.00", "1")
    assert (together[0], together[7]) == ("sync, colocated", "5.00")
    assert together[-1].startswith("1.60")


def test_settings_and_budgets_are_never_averaged(tmp_path: Path):
    """The bound of an asynchronous schedule, and the limit of a budget sweep."""
    old = {"staleness": {"mean": 0.5, "max": 1, "violations": {"bound": 1}}}
    small = {"budget": {"kind": "device_s", "limit": 90.0}}
    leave(tmp_path / "0", "async", 0, 8.0, 0.5)
    leave(tmp_path / "1", "async", 0, 6.0, 0.5, **old)
    leave(tmp_path / "2", "async", 0, 5.0, 0.5, **small)
    leave(tmp_path / "3", "sync", 0, 10.0, 0.5, **small)
    found = [(r[0], r[1], r[12], r[-1]) for r in rows(load(tmp_path)[0])]
    assert found == [
        ("sync", "90 device_s", "0.00 (0)", "1"),
        ("async, max_staleness=4", "90 device_s", "0.00 (0)", "2.00 (2.00 to 2.00)"),
        ("async, max_staleness=1", "360 device_s", "0.50 (1)", "-"),
        ("async, max_staleness=4", "360 device_s", "0.00 (0)", "-"),
    ]


def test_a_rate_that_was_not_measured_is_no_figure(tmp_path: Path):
    leave(tmp_path / "0", "sync", 0, 8.0, 0.5, accuracy={"initial": None, "final": 0.5})
    (row,) = rows(load(tmp_path)[0])
    assert row[4:7] == ("-", "50.0 %", "-")


def test_the_table_says_what_its_seeds_cannot_tell(tmp_path: Path):
    """Finals 40, 50, 60 and 50, 50, 50: pooled variance (200 + 0) / 4 = 50, t(4) = 2.776, and
    2.776 x sqrt(2 x 50 / 3) = 16.0 points."""
    for k, final in enumerate((0.4, 0.5, 0.6)):
        leave(tmp_path / f"a{k}", "sync", k, 8.0, final)
        leave(tmp_path / f"b{k}", "stream", k, 8.0, 0.5)
    summaries, _ = load(tmp_path)
    assert "With 3 seeds a difference of less than 16.0 points" in table(summaries)
    assert resolution(summaries[:1]) is None


def configured(folder: Path, **more) -> None:
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "config.yaml").write_text(json.dumps({"schedule": more, "seed": 3}))


def test_whatever_differs_makes_a_row_and_only_seeds_are_averaged(tmp_path: Path):
    for k, (rate, seed) in enumerate([(1e-4, 0), (1e-4, 1), (1e-3, 0)]):
        leave(tmp_path / str(k), "sync", seed, 8.0, 0.5)
        configured(tmp_path / str(k), learning_rate=rate)
    assert [(r[0], r[2]) for r in rows(load(tmp_path)[0])] == [
        ("sync, schedule.learning_rate=0.0001", "2"), ("sync, schedule.learning_rate=0.001", "1"),
    ]  # fmt: skip
    leave(tmp_path / "9", "sync", 0, 9.0, 0.5)
    configured(tmp_path / "9", learning_rate=1e-3)
    with pytest.raises(ValueError, match="the same seed twice"):
        rows(load(tmp_path)[0])


def test_a_run_without_an_update_has_no_time_of_one(tmp_path: Path):
    leave(tmp_path / "0", "sync", 0, 8.0, 0.5)
    none = {"time": {"per_update_s": None, "tail_s": None}, "updates": 0}
    leave(tmp_path / "1", "stream", 0, 8.0, 0.5, **none)
    _, stream = rows(load(tmp_path)[0])
    assert (stream[3], stream[7], stream[8], stream[-1]) == ("0.0", "-", "-", "-")
