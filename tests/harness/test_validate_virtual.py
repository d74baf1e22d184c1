"""Real runs beside their simulation: schedule and budget are the same, fit and test apart."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from environments.simulated.workload_config import WorkloadConfig
from harness import calibrate, composition, validate_virtual
from harness.costs.config import HardwareConfig
from harness.costs.recording import read
from harness.protocols import UsageError
from harness.recorded_runs import Preset, configure, observed, update_errors
from harness.validate_virtual import Row, summary_line, table
from harness.virtual_jobs import Simulator
from tests.harness.costs.recordings import UPDATES, simulable


def test_a_run_is_simulated_as_it_was_run(tmp_path: Path) -> None:
    runs = [
        read(simulable(tmp_path / "0", False, 0), 0),
        read(simulable(tmp_path / "1", True, 1), 1),
    ]
    made = Preset(HardwareConfig(label="here"), WorkloadConfig(name="drawn"), {"max_turns": 10})
    with Simulator() as simulator:
        drawn = configure(simulator, made, runs[1], "drawn")
        traced = configure(simulator, made, runs[1], "trace")
    assert (drawn.schedule.name, drawn.schedule.release, drawn.seed) == ("stream", "reward", 1)
    assert (drawn.schedule.chunk_tokens, drawn.budget.limit) == (900, 2)
    assert drawn.hardware == made.hardware and drawn.workload == made.workload
    assert drawn.sandbox.max_parallel == 7 and traced.sandbox.max_parallel > 7
    assert traced.workload.trace == str(tmp_path / "1" / "trajectories.jsonl")
    assert made.workload.trace is None  # it is not the run's


def test_where_seconds_were_spent_later_updates_are_under_way_at_the_end(tmp_path: Path) -> None:
    folder = simulable(tmp_path / "0", False, 0)
    config = json.loads((folder / ".hydra" / "config.yaml").read_text())
    config["budget"] = {"kind": "wall_clock_s", "limit": 180.0}
    config["schedule"]["max_staleness"] = 4
    (folder / ".hydra" / "config.yaml").write_text(json.dumps(config))
    run = read(folder, 0)
    with Simulator() as simulator:
        played = configure(simulator, Preset(HardwareConfig(), WorkloadConfig(), {}), run, "trace")
    assert (played.budget.kind, played.budget.limit) == ("updates", 8)


def test_a_fit_is_judged_by_the_updates_that_it_simulates(tmp_path: Path) -> None:
    run = read(simulable(tmp_path / "0", True, 0), 0)
    cpu = composition.compose(["schedule=sync", "hardware=cpu2"]).hardware
    slow, right = (
        Preset(dataclasses.replace(cpu, decode_step_s=step_s), WorkloadConfig(), {"max_turns": 10})
        for step_s in (0.5, 0.1)
    )
    with Simulator() as simulator:
        simulator.run(configure(simulator, right, run, "trace"), tmp_path / "was")
        (run.folder / "updates.csv").write_bytes((tmp_path / "was" / "updates.csv").read_bytes())
        errors = update_errors(simulator, [slow, right], [run], tmp_path / "fits")
    assert errors[0] > 0.5 and errors[1] == 0


def test_the_same_updates_are_compared(tmp_path: Path) -> None:
    (tmp_path / "updates.csv").write_text(UPDATES)
    assert observed(tmp_path, 2) == pytest.approx(
        {
            "time.per_update_s": 3.0, "time.tail_s": 1.0,
            "idle.learner": 2.5 / 6, "idle.engine": 1.2 / 6,
        }
    )  # fmt: skip


def test_the_command_writes_measured_beside_virtual(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, held = simulable(tmp_path / "0", False, 0), simulable(tmp_path / "1", True, 1)
    out = tmp_path / "out"
    arguments = [f"fit={fit}", f"held_out={held}", f"out={out}", "cores=2"]
    monkeypatch.setattr("sys.argv", ["validate_virtual", *arguments])
    monkeypatch.setattr(calibrate, "SIMULATED", 2)
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


@pytest.mark.parametrize(
    ("text", "updates", "message"),
    [
        (None, 2, "updates.csv cannot be read"),
        ("update,per_update_s\n1,4.0\n", 1, "updates.csv cannot be read (KeyError('tail_s'))"),
        (UPDATES, 0, "made no update; give runs with updates"),
    ],
)
def test_a_run_without_updates_is_one_line(
    text: str | None, updates: int, message: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "updates.csv").write_text(text)
    with pytest.raises(UsageError) as raised:
        observed(tmp_path, updates)
    assert f"runs={tmp_path}: {message}" in str(raised.value)


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
    assert "sync +20.0 % (+20.0 %). NOT every schedule within 10 %; 0 of 1 runs." in summary_line(
        rows
    )
    other = Row("sync, seed 2", True, "trace", "time.per_update_s", 20.0, 18.6)
    mean = "sync +2.0 % (+20.0 %, -7.0 %). Every schedule within 10 %; 1 of 2 runs."
    assert mean in summary_line([*rows, other]).splitlines()[0]


def test_a_missing_setting_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["validate_virtual", "fit=a", "out=b"])
    assert validate_virtual.main() == 2
    assert "held_out: missing" in capsys.readouterr().err
