"""Real SIGKILLs of runs with real sandboxes, engine, learner and teacher, which then go on."""

from __future__ import annotations

import csv
import json
import random
import re
import shlex
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.harness.killing import (
    kill,
    logged_updates,
    relearnt,
    run,
    start,
    statuses,
    trajectories,
    until,
    verbs_of,
    weights,
    whole_lines,
)

WALL = (
    "experiment=smoke", "sandbox=bubblewrap", "evaluation.initial=false", "evaluation.final=false",
    "budget.limit=3", "checkpoint.every=1",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("policy.lora.rank=4", "schedule.learning_rate=1e-2"),
        ("objective.kl.coefficient=0.1",),
        ("checkpoint.every=2",),
        ("objective=opd",),
        ("objective=opd", "objective.top_k=4", "teacher=recorded"),
    ],
    ids=["plain", "lora", "kl", "every-other-update", "teacher", "recorded-teacher"],
)
def test_a_killed_synchronous_run_ends_with_the_same_weights(
    tmp_path: Path, small_recording: Path, settings: tuple[str, ...]
) -> None:
    """Its tokens are a recording's: what the engine samples alone depends, in the last bit, on what
    else it decodes at the moment."""
    settings = (
        *WALL, "schedule=sync", "tracking=none", f"replay={small_recording}", "budget.limit=4",
        *settings,
    )  # fmt: skip
    whole, folder = tmp_path / "whole", tmp_path / "run"
    if "teacher=recorded" in settings:
        scored = (*(s for s in settings if s != "teacher=recorded"), "budget.limit=1")
        run(tmp_path, *scored, f"hydra.run.dir={tmp_path}/scored")
        settings = (*settings, f"teacher.file={tmp_path}/scored/trajectories.jsonl")
    run(tmp_path, *settings, f"hydra.run.dir={whole}")
    assert kill(start(tmp_path, *settings, f"hydra.run.dir={folder}"), folder, 40, 0.2)
    said = run(tmp_path, *settings, f"resume={folder}")
    assert "going on from update-" in said
    assert weights(folder) == weights(whole)
    assert trajectories(folder).keys() == trajectories(whole).keys()


LAYOUTS = {
    "ddp": (),
    "sharded": ("ledger.sharded=true",),
    "fsdp": ("learner.parallel=fsdp",),
    "adapters": ("learner.parallel=fsdp", "policy.lora.rank=4"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_lost_rank_ends_the_run_in_one_line_with_the_command_that_goes_on(
    tmp_path: Path, small_recording: Path, layout: str
) -> None:
    settings = (
        *WALL, "schedule=sync", f"replay={small_recording}", "budget.limit=4", "learner.ranks=2",
        "schedule.learner_devices=2", *LAYOUTS[layout],
    )  # fmt: skip
    whole, folder = tmp_path / "whole", tmp_path / "run"
    run(tmp_path, *settings, f"hydra.run.dir={whole}", "tracking=none")
    tracked = f"tracking.uri=sqlite:///{tmp_path}/mlflow.db"
    process = start(tmp_path, *settings, tracked, f"hydra.run.dir={folder}")
    until(process, folder, 27)
    started = psutil.Process(process.pid).children(recursive=True)
    workers = [p for p in started if "harness.cluster.worker" in p.cmdline()]
    assert len(workers) == 3  # engine/0, learner/0, learner/1, in that order
    max(workers, key=lambda p: p.pid).send_signal(signal.SIGKILL)
    said = process.communicate(timeout=250)[1].decode()
    assert process.returncode == 1 and "Traceback" not in said
    (line,) = (line for line in said.splitlines() if "worker process ended" in line)
    command = re.fullmatch(
        r"error: learner/1: the worker process ended \(exit code -9\); "
        r"go on from checkpoint update-00000\d: python -m harness\.run (.*)",
        line,
    )
    assert command is not None, line
    assert psutil.wait_procs(started, timeout=10)[1] == []
    assert json.loads((folder / "summary.json").read_text())["status"] == "failed"
    assert statuses(tmp_path) == ["FAILED"]
    resume = shlex.split(command[1])
    alone = ("learner.ranks=1", "learner.parallel=ddp", "ledger.sharded=false")
    other = start(tmp_path, *resume, *alone)
    refusal = other.communicate(timeout=250)[1].decode().splitlines()
    assert other.returncode == 2 and "learner.ranks=1 (there 2)" in refusal[-1]
    assert "going on from update-" in run(tmp_path, *resume)
    assert weights(folder) == weights(whole)
    assert trajectories(folder).keys() == trajectories(whole).keys()
    assert statuses(tmp_path) == ["FINISHED"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "schedule",
    [
        ("schedule=sync",),
        ("schedule=stream",),
        ("schedule=async",),
        ("schedule=stream", "policy.lora.rank=4"),
        ("schedule=stream", "schedule.release=turn", "objective=opd"),
    ],
    ids=["sync", "stream", "async", "adapters", "distilled-turns"],
)
def test_kills_under_wall_time_lose_no_finished_trajectory(
    tmp_path: Path, schedule: tuple[str, ...]
) -> None:
    """That the weights are those of these trajectories, learnt from without a break, is what
    harness.relearn says: the log of the learner's verbs goes on too."""
    folder = tmp_path / "run"
    settings = (*WALL, *schedule, f"tracking.uri=sqlite:///{tmp_path}/mlflow.db")
    draw = random.Random(f"wall/{schedule}")
    assert kill(
        start(tmp_path, *settings, f"hydra.run.dir={folder}"), folder, 3, draw.uniform(0.0, 0.5)
    )
    before = whole_lines(folder)
    for more in (14, 4):  # beyond the first update, and amid another
        alive = kill(
            start(tmp_path, *settings, f"resume={folder}"), folder, more, draw.uniform(0.0, 0.5)
        )
        now = whole_lines(folder)
        assert before.items() <= now.items()
        before = now
        if not alive:
            break
    if not (folder / "summary.json").exists():
        said = run(tmp_path, *settings, f"resume={folder}")
        assert "going on from update-" in said
    found = trajectories(folder)
    assert before.items() <= {k: json.dumps(t) for k, t in found.items()}.items()
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["updates"]) == ("finished", 3)
    rows = (folder / "updates.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["1", "2", "3"]
    judged = [t for t in found.values() if t["reward"] is not None]
    assert schedule == ("schedule=async",) or summary["trajectories"] == len(judged) == 36
    if "objective=opd" in schedule:
        assert all(len(t["teacher"]["logprobs_N"]) == t["action_tokens"] for t in judged)
    relearnt(folder)
    assert statuses(tmp_path).count("FINISHED") == 1
    assert logged_updates(tmp_path) == {1, 2, 3}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", ["stream", "async"])
def test_what_several_updates_since_the_checkpoint_were_made_of_is_heard_again(
    tmp_path: Path, schedule: str
) -> None:
    """Killed in the sixth update, two after its last checkpoint: every trajectory that had ended
    since is used as it is, none is generated again, and none is learnt from before the version that
    made its tokens."""
    folder = tmp_path / "run"
    settings = (
        *WALL, f"schedule={schedule}", "rollout.groups_per_batch=2", "rollout.group_size=2",
        "checkpoint.every=3", "budget.limit=6", "tracking=none",
    )  # fmt: skip
    process = start(tmp_path, *settings, f"hydra.run.dir={folder}")
    log = folder / "updates.csv"
    while not log.exists() or len(log.read_text().splitlines()) < 6:  # five updates
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate()
    before = whole_lines(folder)
    newest = json.loads((folder / "checkpoints/update-000003/state.json").read_text())["training"]
    flow = newest["flow"]
    learnt_from = {
        i
        for line in (folder / "learner.jsonl").read_text().splitlines()[: verbs_of(folder, 3)]
        for i in json.loads(line).get("ids", [])
    }
    again, begun = ({}, 6) if flow is None else (dict(flow["again"]), flow["begun"])
    open_groups = {*again, *range(begun, 12)}
    expected = [t for t in map(json.loads, before.values()) if t["group"] in open_groups]
    assert len(expected) >= 8 and learnt_from.isdisjoint(t["trajectory_id"] for t in expected)
    said = run(tmp_path, *settings, f"resume={folder}")
    assert f"going on from update-000003; {len(expected)} trajectories that had ended" in said
    assert before.items() <= whole_lines(folder).items()
    rows = list(csv.DictReader((folder / "updates.csv").open()))
    assert len(rows) == 6
    assert all(float(row["staleness_mean"]) >= 0.0 for row in rows)
    relearnt(folder)
