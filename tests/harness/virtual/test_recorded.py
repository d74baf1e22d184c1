"""A wall run's records under the virtual clock: its own composition to the bit, another one within
the parity control."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from harness.composition import compose, recorded
from harness.display import Display
from harness.experiment import execute
from harness.interrupt import run_virtual
from harness.job import check
from harness.parity import GAP_FACTOR
from harness.policy.load import resolve
from harness.protocols import UsageError
from harness.relearn import relearn
from harness.virtual import VirtualClock

VIRTUAL = ("experiment=smoke", "clock=virtual", "hardware=cpu2", "tracking=none")


def weights(folder: Path) -> Path:
    (path,) = (folder / "checkpoints").glob("weights-*.safetensors")
    return path


def distance(path: Path, other: Path) -> float:
    own, theirs = load_file(path), load_file(other)
    return sum(float((own[k] - theirs[k]).double().square().sum()) for k in own) ** 0.5


def again(folder: Path, hardware: str) -> tuple[dict[str, Any], float]:
    """Its recorded composition under the virtual clock: what came of it, and when it was over."""
    config, clock = recorded(folder), VirtualClock()
    config.hardware = compose([f"hardware={hardware}"]).hardware
    found = run_virtual(clock, relearn(folder, config, clock))
    return found, clock.now()


def test_a_recorded_composition_is_learnt_to_the_bit_whatever_it_is_charged(stream_job) -> None:
    found, end_s = again(stream_job.folder, "cpu2")
    assert found["bit_identical"] and found["updates"] == 2, found
    assert found["clock"] == "virtual" and found["hardware"].startswith("VIRTUAL simulated cpu")
    assert 0 < found["learner_virtual_s"] <= end_s
    other, other_s = again(stream_job.folder, "8xb200")
    assert other["weights_sha256"] == found["weights_sha256"] and other_s != end_s


def test_the_virtual_schedules_own_composition_is_within_the_control(
    stream_job, tmp_path: Path
) -> None:
    """Arrivals are others, and so are the chunks; the update is the same but for rounding."""
    wall = stream_job.folder
    config = compose([
        *VIRTUAL, "schedule=stream", f"replay={wall}/trajectories.jsonl", "parity.every=1",
        "parity.permutations=4",
    ])  # fmt: skip
    check(config)
    summary = execute(config, tmp_path, Display(io.StringIO()))
    assert (summary["clock"], summary["updates"]) == ("virtual", 2)
    assert summary["parity"]["checked"] >= 1 and summary["parity"]["ok"]

    def composition(folder: Path) -> list[Any]:
        lines = map(json.loads, (folder / "learner.jsonl").read_text().splitlines())
        return [line for line in lines if line["verb"] in ("capture", "accumulate")]

    assert composition(tmp_path) != composition(wall)
    moved = distance(weights(wall), resolve("tiny") / "model.safetensors")
    gap = distance(weights(tmp_path), weights(wall)) / moved
    assert 0 < gap <= GAP_FACTOR * summary["parity"]["control_parameter_gap"]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["workload=swebench_verified"], "workload=swebench_verified: not under replay="),
        (["hardware=auto"], "hardware=auto"),
        (["schedule.release=turn", "schedule=stream"], "schedule.release=turn: not under clock="),
    ],
)
def test_a_contradiction_is_one_line(overrides: list[str], says: str) -> None:
    given = [k for k in VIRTUAL if k.split("=")[0] not in {o.split("=")[0] for o in overrides}]
    with pytest.raises(UsageError) as error:
        check(compose([*given, *overrides, f"replay={os.devnull}"]))
    assert str(error.value).startswith(says) and "\n" not in str(error.value)
