"""The choice of a grid: one rule, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from results.tuning import Trial, choose, main, table, trials


def trial(learning_rate: float, solve_rate: float, error: float = 0.04) -> Trial:
    return Trial("sync", learning_rate, solve_rate, error, 10, 100)


def test_what_is_clearly_best_is_chosen():
    assert choose([trial(1e-4, 0.5), trial(3e-4, 0.4), trial(1e-3, 0.3)]).learning_rate == 1e-4


def test_within_one_standard_error_the_common_setting_is_chosen():
    assert choose([trial(1e-4, 0.42), trial(3e-4, 0.4), trial(1e-3, 0.3)]).learning_rate == 3e-4
    assert choose([trial(1e-4, 0.42, 0.01), trial(3e-4, 0.4), trial(1e-3, 0)]).learning_rate == 1e-4
    # 1e-3 is 3.3 times the common setting, 1e-4 a third of it less: nearer in ratio.
    assert choose([trial(1e-4, 0.42), trial(1e-3, 0.41)]).learning_rate == 1e-4


def leave(folder: Path, schedule: str, learning_rate: float, final: float) -> None:
    (folder / ".hydra").mkdir(parents=True)
    summary = {
        "status": "finished", "schedule": schedule, "release": None, "seed": 100, "updates": 10,
        "accuracy": {"final": final, "final_standard_error": 0.04},
        "budget": {"kind": "trajectories", "limit": 640}, "time": {}, "idle": {}, "staleness": {},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / ".hydra" / "config.yaml").write_text(f"schedule:\n  learning_rate: {learning_rate}\n")


def test_a_sweep_becomes_a_table_and_unequal_trials_are_refused(
    tmp_path: Path, capsys, monkeypatch
):
    leave(tmp_path / "0", "sync", 1e-4, 0.3)
    leave(tmp_path / "1", "sync", 3e-4, 0.4)
    leave(tmp_path / "2", "one_step_off", 1e-4, 0.3)
    with pytest.raises(ValueError, match="did not have the same trials"):
        trials(tmp_path)
    leave(tmp_path / "3", "one_step_off", 3e-4, 0.2)
    lines = table(trials(tmp_path)).splitlines()
    assert lines[2:] == [
        "| sync | 0.0001 | 10 | 30.0% ± 4.0% |  |",
        "| sync | 0.0003 | 10 | 40.0% ± 4.0% | chosen |",
        "| one_step_off | 0.0001 | 10 | 30.0% ± 4.0% | chosen |",
        "| one_step_off | 0.0003 | 10 | 20.0% ± 4.0% |  |",
    ]
    (tmp_path / "none").mkdir()
    monkeypatch.setattr("sys.argv", ["results.tuning", str(tmp_path / "none")])
    assert main() == 2
    assert "no finished run" in capsys.readouterr().err
