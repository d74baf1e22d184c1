"""A virtual run that was killed at any moment and goes on ends as one that was not, to the byte.

What SIGKILL leaves of a run is what its files hold at that moment: they are copied at several
moments of one run, and every copy goes on. tests/harness/test_resume_kills.py kills processes.
"""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness import checkpoint, job
from harness.composition import compose
from harness.display import Display
from harness.experiment import execute
from harness.protocols import UsageError
from harness.records import Records

FILES = ("updates.csv", "trajectories.jsonl", "timeline.json", "learner.jsonl")
SMALL = (
    "env=simulated", "workload=math", "hardware=8xb200", "tracking=none", "budget.limit=4",
    "rollout.groups_per_batch=3", "rollout.group_size=3",
)  # fmt: skip
FAILURES = "env.failures={start: 0.1, parser: 0.1}"


def run(folder: Path, *overrides: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = compose([*SMALL, *overrides])
    job.check(config)
    with Display(io.StringIO()) as display:
        execute(config, folder, display)


def left(folder: Path) -> dict[str, Any]:
    """All that a run leaves, but for the real seconds that it took."""
    summary = json.loads((folder / "summary.json").read_text())
    del summary["time"]["simulated_in_s"]
    return {name: (folder / name).read_bytes() for name in FILES} | {"summary": summary}


def killed_at(
    folder: Path, moments: set[int], monkeypatch: pytest.MonkeyPatch, *overrides: str
) -> list[Path]:
    """Run it to its end; copies of its folder as it was after so many trajectories."""
    copies: list[Path] = []
    write = Records.trajectory

    def trajectory(self: Records, *args: Any, **kwargs: Any) -> None:
        write(self, *args, **kwargs)
        if folder == self.folder and len((folder / FILES[1]).read_bytes().splitlines()) in moments:
            copies.append(folder.with_name(f"{folder.name}-{len(copies)}"))
            shutil.copytree(folder, copies[-1])

    with monkeypatch.context() as patch:
        patch.setattr(Records, "trajectory", trajectory)
        run(folder, *overrides)
    return copies


@pytest.mark.parametrize(
    "overrides",
    [
        ["schedule=sync", "budget.kind=device_s", "budget.limit=2000"],
        ["schedule=stream", "schedule.release=auto"],
        ["schedule=stream", "hardware=cpu2", "budget.kind=trajectories", "budget.limit=40"],
        ["schedule=async", "schedule.max_staleness=1"],
        ["schedule=one_step_off"],
        ["schedule=stream", "schedule.release=turn", "checkpoint.every=2"],
    ],
    ids=["sync", "auto", "shared-cores", "async", "one-step-off", "turns"],
)  # fmt: skip
def test_killed_at_three_moments_and_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str]
) -> None:
    overrides = ["checkpoint.every=1", *overrides, FAILURES]
    copies = killed_at(tmp_path / "run", {5, 17, 33}, monkeypatch, *overrides)
    assert len(copies) == 3
    whole = left(tmp_path / "run")
    assert all(map(checkpoint.listed, copies))
    for copy in copies:
        run(copy, *overrides, "resume=auto")
        assert left(copy) == whole


def test_a_run_with_checkpoints_is_the_run_without(tmp_path: Path) -> None:
    run(tmp_path / "with", "schedule=stream", FAILURES, "checkpoint.every=2")
    run(tmp_path / "without", "schedule=stream", FAILURES)
    assert left(tmp_path / "with") == left(tmp_path / "without")


def test_killed_twice_and_while_a_checkpoint_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["schedule=sync", "checkpoint.every=1"]
    (copy,) = killed_at(tmp_path / "run", {15}, monkeypatch, *overrides)
    part = checkpoint.begin(copy, 9)  # begun, and never finished
    (part / checkpoint.STATE).write_text("{")
    with (copy / "trajectories.jsonl").open("a") as file:
        file.write('{"trajectory_id":"cut sh')
    (again,) = killed_at(copy, {30}, monkeypatch, *overrides, "resume=auto")
    assert "resumed_from" in json.loads((again / "manifest.json").read_text())
    run(again, *overrides, "resume=auto")
    assert left(again) == left(copy) == left(tmp_path / "run")
    history = json.loads((again / "manifest.json").read_text())["resumed_from"]
    assert len(history) == 2


def test_a_flow_that_was_played_again_has_to_come_to_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rollouts under way cannot be kept: what such a run claims is that it comes by the same
    state again, and it is held to it."""
    overrides = ["schedule=async", "checkpoint.every=1"]
    (copy,) = killed_at(tmp_path / "run", {33}, monkeypatch, *overrides)
    (newest, *_) = checkpoint.listed(copy)
    state = json.loads((newest / checkpoint.STATE).read_text())
    state["training"]["budget"]["counters"]["tokens"] += 1
    part = checkpoint.begin(copy, state["update"])
    (part / checkpoint.STATE).write_text(json.dumps(state))
    checkpoint.commit(part, copy, state["update"], {})
    with pytest.raises(
        UsageError, match=r"played again up to update-00000. the run differs in trai"
    ):
        run(copy, *overrides, "resume=auto")


@pytest.mark.slow
def test_real_learning_in_virtual_time_goes_on_with_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [
        "env=swebench_virtual", "workload=swebench_verified", "schedule=stream", "budget.limit=3",
        "rollout.group_size=4", "rollout.groups_per_batch=2",
        "evaluation.initial=false", "evaluation.tasks=2", "evaluation.samples_per_task=1",
        "evaluation.marks=[0.5]", "checkpoint.every=1",
    ]  # fmt: skip
    (copy,) = killed_at(tmp_path / "run", {20}, monkeypatch, *overrides)
    assert checkpoint.listed(copy)[0].name == "update-000002"
    run(copy, *overrides, "resume=auto")
    assert left(copy) == left(tmp_path / "run")
    for name in ("weights-000003.safetensors", "../evaluation.jsonl"):
        paths = [folder / "checkpoints" / name for folder in (copy, tmp_path / "run")]
        assert paths[0].read_bytes() == paths[1].read_bytes()
