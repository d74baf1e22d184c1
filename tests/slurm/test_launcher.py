"""Sweeps through submitit: its executor for this machine, which starts, signals and queues jobs
again as the one for Slurm does, and what that one asks sbatch for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from harness.records import SCHEMA_PATH

pytestmark = pytest.mark.slurm

SMALL = (
    "env=simulated", "workload=swebench_verified", "hardware=8xb200",
    "rollout.groups_per_batch=4", "rollout.group_size=4",
)  # fmt: skip


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "harness.run", *arguments]


def mlflow_runs(folder: Path) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    return list(client.search_runs([e.experiment_id for e in client.search_experiments()]))


def left(folder: Path) -> dict[str, Any]:
    """All that a virtual run leaves, but for the real seconds that it took."""
    summary = json.loads((folder / "summary.json").read_text())
    jsonschema.validate(summary, json.loads(SCHEMA_PATH.read_text()))
    del summary["time"]["simulated_in_s"]
    names = ("updates.csv", "trajectories.jsonl", "timeline.json", "learner.jsonl")
    return {name: (folder / name).read_bytes() for name in names} | {"summary": summary}


def test_two_jobs_one_of_them_preempted_end_as_without_the_launcher(tmp_path: Path) -> None:
    """The signal that Slurm sends before it takes a job's node: the job cleans up, is queued again,
    and goes on from its checkpoint, as the same run of the sweep's one parent."""
    sweep = tmp_path / "sweep"
    settings = (*SMALL, "schedule=sync,stream", "budget.limit=16", "checkpoint.every=2")
    process = subprocess.Popen(
        command("-m", "launcher=slurm_here", *settings, f"hydra.sweep.dir={sweep}"),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    preempted = sweep / "1_stream_0"
    while not list((preempted / "checkpoints").glob("update-*[1-9]")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    jobs = psutil.Process(process.pid).children(recursive=True)
    (job,) = (p for p in jobs if (preempted / "manifest.json").exists() and runs(p, preempted))
    job.send_signal(signal.SIGUSR2)
    stdout, stderr = process.communicate(timeout=280)
    assert process.returncode == 0, stderr
    closing = json.loads(stdout.splitlines()[-1])
    assert [(c["status"], c["schedule"]) for c in closing] == [
        ("finished", "sync"), ("finished", "stream"),
    ]  # fmt: skip
    history = json.loads((preempted / "manifest.json").read_text())["resumed_from"]
    assert len(history) == 1
    for name in ("sync", "stream"):
        alone = subprocess.run(
            command(
                *SMALL, f"schedule={name}", "budget.limit=16", "tracking=none",
                f"hydra.run.dir={tmp_path}/{name}",
            ),
            cwd=tmp_path, capture_output=True, text=True, timeout=280,
        )  # fmt: skip
        assert alone.returncode == 0, alone.stderr
        (job_folder,) = sweep.glob(f"*_{name}_0")
        assert left(job_folder) == left(tmp_path / name)
    runs_there = mlflow_runs(tmp_path)
    assert len(runs_there) == 3 and {r.info.status for r in runs_there} == {"FINISHED"}
    parents = {r.data.tags.get("mlflow.parentRunId") for r in runs_there} - {None}
    assert len(parents) == 1


def runs(process: psutil.Process, folder: Path) -> bool:
    """Whether it is the process that writes the run in `folder`."""
    try:
        return any(file.path.startswith(f"{folder}/") for file in process.open_files())
    except psutil.Error:
        return False


def test_what_sbatch_is_asked_for_and_its_refusal_in_one_line(tmp_path: Path) -> None:
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "sbatch").write_text(
        f'#!/bin/sh\ncp "$1" {tmp_path}/asked\necho "sbatch: no such partition" >&2\nexit 1\n'
    )
    (fake / "srun").write_text("#!/bin/sh\n")
    for path in fake.iterdir():
        path.chmod(0o755)
    ended = subprocess.run(
        command(
            "-m", "launcher=slurm", *SMALL, "tracking=none", "seed=0,1", "learner.device=cuda",
            "schedule.engine_devices=4", "schedule.learner_devices=2",
            "hydra.launcher.partition=gpu",
        ),
        cwd=tmp_path, env=os.environ | {"PATH": f"{fake}:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    asked = (tmp_path / "asked").read_text().splitlines()
    wanted = {
        "nodes=1", "ntasks-per-node=1", "gpus-per-node=6", "cpus-per-task=72", "time=1440",
        "signal=USR2@120", "requeue", "open-mode=append", "partition=gpu", "array=0-1%2",
    }  # fmt: skip
    assert wanted <= {line.removeprefix("#SBATCH --") for line in asked}
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    (line,) = (line for line in ended.stderr.splitlines() if line.startswith("error: "))
    assert "no such partition" in line
