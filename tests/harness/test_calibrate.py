"""Calibration finds planted constants again, and says how far off it is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from environments.simulated.workload import DrawnWorkload, Limits
from environments.simulated.workload_config import (
    DifficultyConfig,
    LogNormalConfig,
    WorkloadConfig,
)
from harness import calibrate
from harness.config import Config
from harness.costs import cpu_preset, fit_hardware, fit_workload
from harness.costs.config import HardwareConfig
from harness.costs.model import CostModel, Split
from harness.costs.recording import Life, Profile, Recording, read
from harness.costs.select import check_hardware
from harness.costs.shapes import shape
from harness.protocols import UsageError
from tests.harness.costs import recordings


def recorded(folder: Path) -> tuple[Any, list[Recording]]:
    planted = recordings.Planted()
    runs = [
        read(recordings.record(folder / str(i), planted, i, streaming, threads), i)
        for i, (streaming, threads) in enumerate(((False, 1), (True, 1), (False, 2)))
    ]
    return planted, runs


def test_planted_costs_are_found_again(tmp_path: Path) -> None:
    planted, runs = recorded(tmp_path)
    costs = fit_hardware.fits(runs, cores=2)[0]
    assert costs.shared.sandbox_cores == planted.sandbox_cores
    assert costs.shared.sandboxes_felt == planted.sandboxes_felt
    assert costs.engine_thread_gain == planted.engine_thread_gain
    assert costs.learner_thread_gain == planted.learner_thread_gain
    pass_s, flop_s, capture_s = costs.learner
    assert pass_s == pytest.approx(planted.pass_s, rel=0.02)
    assert 1 / flop_s == pytest.approx(planted.learner_flops_s, rel=0.02)
    assert capture_s == pytest.approx(planted.capture_s, rel=0.02)
    step_s, made_s, read_s = costs.engine
    assert step_s == pytest.approx(planted.step_s, rel=0.15)  # a turn is known by its ends alone
    assert 1 / made_s == pytest.approx(planted.engine_flops_s, rel=0.15)
    assert 1 / read_s == pytest.approx(planted.read_flops_s, rel=0.15)
    assert costs.step_s == pytest.approx(planted.optimizer_s)
    assert costs.start_gap_s == pytest.approx(planted.start_gap_s, rel=0.02)


def test_the_preset_costs_what_was_fitted(tmp_path: Path) -> None:
    planted, runs = recorded(tmp_path)
    costs = fit_hardware.fits(runs, cores=2)[0]
    hardware = cpu_preset.preset(costs, "tiny", "simulated two cores", "measured: here")
    check_hardware(hardware)
    model = CostModel(hardware, shape("tiny"), Split(1, 1))
    lengths = [100, 300]
    flops = 3 * (2 * 984448 * 600 + 2048 * 2 * 300 * 301 / 2)
    expected_s = planted.pass_s + flops / planted.learner_flops_s
    assert model.backward_s(lengths) == pytest.approx(expected_s, rel=0.02)
    assert model.capture_overhead_s(1) == pytest.approx(planted.capture_s, rel=0.02)
    assert model.step_s() == pytest.approx(planted.optimizer_s, rel=0.02)
    assert model.contention(1, 1, 8) == 3.0 and model.contention(1, 0, 0) == 1.0
    fields = set(HardwareConfig.__dataclass_fields__) - {"label", "sources"}
    assert set(hardware.sources) == fields
    assert hardware.sources["train_efficiency"] == "measured: here"


def test_a_planted_workload_is_found_again() -> None:
    limits = Limits(60, 10**6, 10**9)
    planted = WorkloadConfig(
        name="planted", prompt_tokens=LogNormalConfig(100.0, 0.4),
        turns=LogNormalConfig(20.0, 0.5, 0.6), action_tokens=LogNormalConfig(50.0, 0.6, 0.2),
        observation_tokens=LogNormalConfig(80.0, 0.9, 0.1), tool_s=LogNormalConfig(0.5, 1.0, 0.3),
        start_s=LogNormalConfig(4.0, 0.3, 0.5), verify_s=LogNormalConfig(20.0, 0.5, 0.9),
        difficulties={"easy": DifficultyConfig(0.6, 0.8), "hard": DifficultyConfig(0.4, 0.3)},
        reward_icc=0.4,
    )  # fmt: skip
    workload = DrawnWorkload(planted, limits)
    lives = [Life(0, g, workload.plan(g, g, i, 0), [], 0.0) for g in range(300) for i in range(8)]
    found = fit_workload.fit(lives, limits, "measured: here")
    for name in fit_workload.VALUES:
        was, now = getattr(planted, name), getattr(found, name)
        assert now.median == pytest.approx(was.median, rel=0.1), name
        if name != "prompt_tokens":  # one of a task, whatever its icc
            assert now.icc == pytest.approx(was.icc, abs=0.08), name
    assert found.tool_s.sigma == pytest.approx(1.0, rel=0.05)
    assert found.reward_icc == pytest.approx(0.4, abs=0.08)
    assert found.difficulties["easy"].success == pytest.approx(0.8, abs=0.05)
    assert found.difficulties["hard"].share == pytest.approx(0.4, abs=0.07)
    assert found.failed_turns_factor == pytest.approx(1.0, abs=0.1)


def test_a_profile_counts_what_is_under_way() -> None:
    profile = Profile([(0.0, 2.0), (1.0, 3.0), (10.0, 11.0)])
    spans = np.array([[0.0, 1.0], [1.0, 2.0], [0.0, 4.0], [4.0, 9.0], [9.0, 11.0]])
    assert profile.mean(spans[:, 0], spans[:, 1]).tolist() == [1.0, 2.0, 1.0, 0.0, 0.5]
    assert Profile([]).mean(spans[:, 0], spans[:, 1]).tolist() == [0.0] * 5


def test_the_command_writes_a_preset_and_tells_held_out_errors_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, streaming in enumerate((False, True)):
        recordings.simulable(tmp_path / str(number), streaming, number)
    slower = recordings.Planted(pass_s=0.1, learner_flops_s=2.5e9, capture_s=0.08)
    recordings.record(tmp_path / "slower", slower, 5, True)
    monkeypatch.setattr(calibrate, "SIMULATED", 2)
    out = tmp_path / "experiment" / "here.yaml"
    monkeypatch.setattr(
        "sys.argv",
        ["calibrate", f"runs={tmp_path / '0'},{tmp_path / '1'}", f"held_out={tmp_path / 'slower'}",
         f"out={out}", "cores=2"],
    )  # fmt: skip
    assert calibrate.main() == 0
    told = capsys.readouterr()
    assert "stream, seed 5 (held out)" in told.err
    closing = json.loads(told.out.splitlines()[-1])
    passes = {
        (row["run"], row["held_out"]): row["error"]
        for row in closing["errors"]
        if row["quantity"] == "learner passes, s"
    }
    assert passes["stream, seed 1", False] == pytest.approx(0.0, abs=0.02)
    assert passes["stream, seed 5", True] == pytest.approx(-0.5, abs=0.02)  # twice as slow
    made = OmegaConf.load(out)
    merged: Any = OmegaConf.merge(
        {"hardware": OmegaConf.structured(HardwareConfig),
         "workload": OmegaConf.structured(WorkloadConfig)},
        {"hardware": made.hardware, "workload": made.workload},
    )  # fmt: skip
    assert merged.hardware.cores == 2 and merged.workload.name == "calibrated"
    assert out.read_text().startswith("# @package _global_\n")
    assert made.rollout.max_new_tokens == 64 and Config().rollout.max_new_tokens == 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["out=x.yaml"], "runs: missing"),
        (["runs=x", "out=y", "runz=1"], "runz=1: no such setting"),
        (["runs=nowhere", "out=y"], "runs=nowhere"),
        (["runs=nowhere", "out=y", "cores=0"], "cores=0"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.argv", ["calibrate", *arguments])
    assert calibrate.main() == 2
    assert message in capsys.readouterr().err


def test_runs_that_measure_nothing_are_refused(tmp_path: Path) -> None:
    folder = recordings.record(tmp_path / "run", recordings.Planted(), 0, False)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"clock": "virtual"}))
    with pytest.raises(UsageError, match="virtual time"):
        read(folder, 0)


def test_a_correlation_is_between_0_and_1() -> None:
    assert fit_workload.correlation([[1.0, 1.0], [2.0, 2.0]]) == 1.0
    assert fit_workload.correlation([[1.0, 2.0], [1.0, 2.0]]) == 0.0
    assert fit_workload.correlation([[1.0], [2.0]]) == 0.0
    assert math.isclose(fit_workload.correlation([[0.0, 2.0], [2.0, 4.0]]), 1 / 3)
