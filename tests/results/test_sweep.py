"""The sweep table: figures by hand, and what it does with runs that are not whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from results.sweep import load, rows, table


def leave(folder: Path, schedule: str, seed: int, update_s: float, final: float, **more) -> None:
    folder.mkdir(parents=True)
    summary = {
        "status": "finished", "schedule": schedule, "release": "reward", "seed": seed,
        "accuracy": {"initial": 0.3, "final": final},
        "time": {"per_update_s": update_s, "tail_s": 1.0},
        "idle": {"learner": 0.5, "engine": 0.25},
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
    assert sync[:6] == (
        "sync",
        "2",
        "30.0 % ± 0.0 %",
        "45.0 % ± 5.0 %",
        "15.0 ± 5.0",
        "9.00 ± 1.00",
    )
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
    assert rows(summaries)[0][2] == "30.0 %"  # one seed: no interval is invented


def test_nothing_to_show_is_one_clear_line(tmp_path: Path):
    with pytest.raises(ValueError, match="no finished run"):
        load(tmp_path)


def test_a_colocated_baseline_is_a_row_of_its_own(tmp_path: Path):
    """Two placements of one schedule are two schedules to compare with: never averaged."""
    leave(tmp_path / "0", "sync", 0, 8.0, 0.5, placement="disaggregated")
    leave(tmp_path / "1", "sync", 0, 5.0, 0.5, placement="colocated")
    apart, together = rows(load(tmp_path)[0])
    assert (apart[0], apart[5], apart[-1]) == ("sync", "8.00", "1")
    assert (together[0], together[5]) == ("sync, colocated", "5.00")
    assert together[-1].startswith("1.60")
