"""Real runs beside their simulation: schedule and budget are the same, fit and test apart."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from harness import calibrate, composition, validate_virtual
from harness.costs.recording import read
from harness.validate_virtual import Row, configure, summary_line, table
from harness.virtual_jobs import Simulator
from tests.harness.costs import recordings


def recorded(folder: Path, streaming: bool, seed: int) -> Path:
    """A synthetic run with all of a configuration and the figures that are compared."""
    recordings.record(folder, recordings.Planted(), seed, streaming)
    name = "stream" if streaming else "sync"
    config = dataclasses.asdict(
        composition.compose(
            [f"schedule={name}", f"seed={seed}", "budget.kind=updates", "budget.limit=2",
             "rollout.groups_per_batch=2", "rollout.group_size=8", "rollout.max_turns=10",
             "rollout.max_new_tokens=64", "sandbox.max_parallel=7", "tracking=none",
             "schedule.chunk_tokens=900"]
        )
    )  # fmt: skip
    (folder / ".hydra" / "config.yaml").write_text(json.dumps(config))
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"time": {"per_update_s": 3.0, "tail_s": 1.0}, "idle": {"learner": 0.5, "engine": 0}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_a_run_is_simulated_as_it_was_run(tmp_path: Path) -> None:
    runs = [read(recorded(tmp_path / "0", False, 0), 0), read(recorded(tmp_path / "1", True, 1), 1)]
    made = calibrate.calibrate(runs[:1], runs[1:], 2, "cpu")
    with Simulator() as simulator:
        drawn = configure(simulator, made, runs[1], "drawn")
        traced = configure(simulator, made, runs[1], "trace")
    assert (drawn.schedule.name, drawn.schedule.release, drawn.seed) == ("stream", "reward", 1)
    assert (drawn.schedule.chunk_tokens, drawn.budget.limit) == (900, 2)
    assert drawn.hardware == made.hardware and drawn.workload == made.workload
    assert drawn.sandbox.max_parallel == 7 and traced.sandbox.max_parallel > 7
    assert traced.workload.trace == str(tmp_path / "1" / "trajectories.jsonl")
    assert made.workload.trace is None  # it is not the run's


def test_the_command_writes_measured_beside_virtual(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, held = recorded(tmp_path / "0", False, 0), recorded(tmp_path / "1", True, 1)
    out = tmp_path / "out"
    arguments = [f"fit={fit}", f"held_out={held}", f"out={out}", "cores=2"]
    monkeypatch.setattr("sys.argv", ["validate_virtual", *arguments])
    assert validate_virtual.main() == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {(r["run"], r["held_out"], r["lives"]) for r in rows} == {
        ("sync, seed 0", False, "trace"), ("sync, seed 0", False, "drawn"),
        ("stream, seed 1", True, "trace"), ("stream, seed 1", True, "drawn"),
    }  # fmt: skip
    assert all(r["predicted"] > 0 for r in rows if r["quantity"] == "time.per_update_s")
    text = (out / "validation.md").read_text()
    assert "VIRTUAL" in text and "held out" in text
    assert (out / "experiment" / "calibrated.yaml").read_text().startswith("# @package _global_")


def test_errors_are_relative_for_times_and_differences_for_fractions() -> None:
    rows = [
        Row("sync, seed 1", True, "trace", "time.per_update_s", 10.0, 12.0),
        Row("sync, seed 1", True, "trace", "time.tail_s", 1.0, 0.5),
        Row("sync, seed 1", True, "trace", "idle.learner", 0.5, 0.45),
        Row("sync, seed 1", True, "trace", "idle.engine", 0.0, 0.1),
    ]
    assert [round(row.error, 9) for row in rows] == [0.2, -0.5, -0.05, 0.1]
    assert "| sync, seed 1 | held out | trace | 10 | 12 | +20.0 % |" in table(rows)
    assert "-5.0 points" in table(rows)
    assert "sync +20.0 %. NOT all within 10 %." in summary_line(rows)
    near = [dataclasses.replace(rows[0], predicted=10.9)]
    assert "All within 10 %." in summary_line(near).splitlines()[0]


def test_a_missing_setting_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["validate_virtual", "fit=a", "out=b"])
    assert validate_virtual.main() == 2
    assert "held_out: missing" in capsys.readouterr().err
