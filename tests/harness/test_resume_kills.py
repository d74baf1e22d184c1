"""Real SIGKILLs of real runs, which then go on: at random moments in virtual time, and under wall
time with real sandboxes, engine and learner."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

KILLS = 20
VIRTUAL = (
    "env=simulated", "workload=swebench_verified", "hardware=64xh100", "tracking=none",
    "rollout.groups_per_batch=8", "rollout.group_size=8", "budget.limit=24", "checkpoint.every=2",
    "env.failures={start: 0.02, parser: 0.02}",
)  # fmt: skip
WALL = (
    "experiment=smoke", "sandbox=bubblewrap", "evaluation.initial=false", "evaluation.final=false",
    "budget.limit=3", "checkpoint.every=1",
)  # fmt: skip


def start(where: Path, *arguments: str) -> subprocess.Popen[bytes]:
    where.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "harness.run", *arguments]
    return subprocess.Popen(
        command, cwd=where, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=os.environ
    )


def run(where: Path, *arguments: str) -> str:
    process = start(where, *arguments)
    _, said = process.communicate(timeout=280)
    assert process.returncode == 0, said.decode()
    return said.decode()


def lines(folder: Path) -> int:
    path = folder / "trajectories.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill(process: subprocess.Popen[bytes], folder: Path, more: int, delay_s: float) -> bool:
    """SIGKILL once the run has written `more` trajectories, and a moment later; whether it was
    still alive."""
    began = lines(folder)
    deadline = time.monotonic() + 250
    # One that goes on has first cut its log to its checkpoint, or, played again, to nothing.
    while process.poll() is None and time.monotonic() < deadline:
        now = lines(folder)
        began = min(began, now)
        if now >= began + more:
            break
        time.sleep(0.002)
    time.sleep(delay_s)
    alive = process.poll() is None
    process.kill()
    _, said = process.communicate()
    assert alive or process.returncode == 0, said.decode()
    return alive


def left(folder: Path) -> dict[str, Any]:
    """All that a virtual run leaves, but for the real seconds that it took."""
    summary = json.loads((folder / "summary.json").read_text())
    del summary["time"]["simulated_in_s"]
    names = ("updates.csv", "trajectories.jsonl", "timeline.json", "learner.jsonl")
    return {name: (folder / name).read_bytes() for name in names} | {"summary": summary}


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("schedule", ["sync", "stream", "async", "one_step_off"])
def test_random_kills_in_virtual_time(tmp_path: Path, schedule: str) -> None:
    """Five kills a schedule, twenty in all: each at a random moment of a run of its own or of one
    that had been killed before."""
    draw = random.Random(f"kills/{schedule}")
    whole = tmp_path / "whole"
    settings = (*VIRTUAL, f"schedule={schedule}")
    run(tmp_path, *settings, f"hydra.run.dir={whole}")
    total, killed, number = lines(whole), 0, 0
    while True:
        folder = tmp_path / f"killed-{number}"
        arguments = (*settings, f"hydra.run.dir={folder}", "resume=auto")
        if killed == KILLS // 4:
            run(tmp_path, *arguments)
        else:
            # What goes on is as far as it was; what is played again begins at nothing.
            part = 1 if schedule in ("async", "one_step_off") else 5
            more, delay_s = draw.randrange(total // part), draw.uniform(0.0, 0.1)
            if kill(start(tmp_path, *arguments), folder, more, delay_s):
                killed += 1
                continue
        assert left(folder) == left(whole)
        if killed == KILLS // 4:
            return
        number += 1  # it had ended before it was to be killed: another run


def weights(folder: Path) -> str:
    (path,) = (folder / "checkpoints").glob("weights-*.safetensors")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def trajectories(folder: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "trajectories.jsonl").open()]
    assert Counter(t["trajectory_id"] for t in found).most_common(1)[0][1] == 1
    return {t["trajectory_id"]: t for t in found}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_synchronous_run_ends_with_the_same_weights(
    tmp_path: Path, small_recording: Path
) -> None:
    """Its tokens are a recording's: what the engine samples alone depends, in the last bit, on what
    else it decodes at the moment."""
    settings = (
        *WALL, "schedule=sync", "tracking=none", f"replay={small_recording}", "budget.limit=4",
    )  # fmt: skip
    whole, folder = tmp_path / "whole", tmp_path / "run"
    run(tmp_path, *settings, f"hydra.run.dir={whole}")
    assert kill(start(tmp_path, *settings, f"hydra.run.dir={folder}"), folder, 27, 0.2)
    said = run(tmp_path, *settings, f"resume={folder}")
    assert "going on from update-" in said
    assert weights(folder) == weights(whole)
    assert trajectories(folder).keys() == trajectories(whole).keys()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("schedule", ["sync", "stream", "async"])
def test_kills_under_wall_time_lose_no_finished_trajectory(tmp_path: Path, schedule: str) -> None:
    """That the weights are those of these trajectories, learnt from without a break, is what
    harness.relearn says: the log of the learner's verbs goes on too."""
    folder = tmp_path / "run"
    settings = (*WALL, f"schedule={schedule}", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db")
    draw = random.Random(f"wall/{schedule}")
    assert kill(
        start(tmp_path, *settings, f"hydra.run.dir={folder}"), folder, 3, draw.uniform(0.0, 0.5)
    )
    before = _whole_lines(folder)
    for more in (14, 4):  # beyond the first update, and amid another
        alive = kill(
            start(tmp_path, *settings, f"resume={folder}"), folder, more, draw.uniform(0.0, 0.5)
        )
        now = _whole_lines(folder)
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
    judged = sum(t["reward"] is not None for t in found.values())
    assert schedule == "async" or summary["trajectories"] == judged == 36
    played = subprocess.run(
        [sys.executable, "-m", "harness.relearn", f"run={folder}"], capture_output=True, text=True
    )
    assert played.returncode == 0, played.stdout + played.stderr
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'thundersync'")
    runs = client.search_runs([experiment.experiment_id])
    finished = [r for r in runs if r.info.status == "FINISHED"]
    assert len(finished) == 1
    steps = {m.step for m in client.get_metric_history(finished[0].info.run_id, "update")}
    assert steps == {1, 2, 3}


def _whole_lines(folder: Path) -> dict[str, str]:
    """Trajectory id -> its line, of the lines that are whole."""
    text = (folder / "trajectories.jsonl").read_text()
    kept = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return {t["trajectory_id"]: json.dumps(t) for t in kept}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_sweep_goes_on_and_skips_what_had_finished(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    settings = ("-m", "schedule=sync,stream", *VIRTUAL, f"hydra.sweep.dir={sweep}")
    assert kill(start(tmp_path, *settings), sweep / "1_stream_0", lines_of_an_update() * 3, 0.0)
    written = (sweep / "0_sync_0" / "summary.json").stat().st_mtime_ns
    said = run(tmp_path, *settings, "resume=auto")
    assert "0_sync_0 has finished already: skipped" in said and "going on from update-" in said
    assert (sweep / "0_sync_0" / "summary.json").stat().st_mtime_ns == written
    run(tmp_path, *VIRTUAL, "schedule=stream", f"hydra.run.dir={tmp_path}/whole")
    assert left(sweep / "1_stream_0") == left(tmp_path / "whole")
    refused = start(tmp_path, *settings, f"resume={sweep}")
    assert b"a sweep has a folder for each job; take resume=auto" in refused.communicate()[1]
    assert refused.returncode == 1  # every job of a sweep runs, and all failed


def lines_of_an_update() -> int:
    return 64
