"""harness.run as a process: sweeps, early signals, folders of the same second."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
from mlflow import MlflowClient

from harness.composition import free_folder
from harness.policy.load import resolve
from harness.records import SCHEMA_PATH

_SMALL = (
    "experiment=smoke",
    "sandbox=bubblewrap",
    "rollout.groups_per_batch=2",
    "rollout.group_size=2",
    "evaluation.tasks=2",
)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "harness.run", *arguments]


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(*arguments), cwd=folder, capture_output=True, text=True, timeout=280
    )


def _summary(path: str | Path) -> dict[str, Any]:
    summary = json.loads(Path(path).read_text())
    jsonschema.validate(summary, json.loads(SCHEMA_PATH.read_text()))
    return summary


def _mlflow(folder: Path) -> dict[str, Any]:
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    return {run.info.run_name: run for run in runs}


def test_a_signal_before_anything_began_ends_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _SLEEPY], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "composed\n"
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 143
    assert stderr == "error: interrupted by signal 15\n"


_SLEEPY = """
import sys, time
sys.argv[1:] = ["tracking=none"]
from harness import entry

def check(config):
    print("composed", file=sys.stderr, flush=True)
    time.sleep(60)

sys.exit(entry.main(print, check, "config", print))
"""


def test_a_sweep_runs_every_job_and_tells_of_each(tmp_path: Path) -> None:
    # A folder that passes the check at start, whose weights fail the job once it runs.
    broken = shutil.copytree(resolve("tiny"), tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no weights")
    ended = _run(
        tmp_path, "-m", "schedule=sync", f"policy.path={broken},null", *_SMALL,
        "budget.limit=1", "evaluation.initial=false", "evaluation.final=false",
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    closing = json.loads(ended.stdout.splitlines()[-1])
    assert [job["status"] for job in closing] == ["failed", "finished"]
    for job in closing:
        _summary(job["summary"])
    runs = _mlflow(tmp_path)
    parent = runs[Path(closing[0]["summary"]).parents[1].name]
    assert parent.info.status == "FAILED"
    children = [r for r in runs.values() if "mlflow.parentRunId" in r.data.tags]
    assert {r.info.status for r in children} == {"FAILED", "FINISHED"}
    assert {r.data.tags["mlflow.parentRunId"] for r in children} == {parent.info.run_id}


@pytest.mark.slow
def test_a_signal_ends_a_sweep_of_parallel_jobs_cleanly(tmp_path: Path) -> None:
    process = subprocess.Popen(
        _command(
            "-m", "schedule=sync,stream", "hydra/launcher=joblib", "budget.limit=10000",
            *_SMALL, "evaluation.initial=false",
        ),
        cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    training = 0
    for line in process.stderr:
        training += "update 1," in line
        if training == 2:
            break
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 143, stderr
    closing = json.loads(stdout.splitlines()[-1])
    assert [job["status"] for job in closing] == ["interrupted", "interrupted"]
    assert [job["sandboxes_leaked"] for job in closing] == [0, 0]
    assert {r.info.status for r in _mlflow(tmp_path).values()} == {"KILLED"}
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []


def test_folders_of_the_same_second_do_not_collide(tmp_path: Path) -> None:
    wanted = str(tmp_path / "outputs" / "12-00-00_sync_0")
    taken = [free_folder(wanted) for _ in range(3)]
    assert taken == [wanted, f"{wanted}-2", f"{wanted}-3"]
    assert all(Path(path).is_dir() for path in taken)
