"""SIGINT and SIGTERM in mid-rollout: the right exit code and status, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest


def start(where: Path, sandbox: str, schedule: str) -> subprocess.Popen[str]:
    """A run with a folder for temporary files of its own: other runs may be under way."""
    (where / "tmp").mkdir()
    return subprocess.Popen(
        [
            sys.executable, "-m", "harness.run", "experiment=smoke", f"sandbox={sandbox}",
            f"schedule={schedule}", "evaluation.initial=false", "evaluation.final=false",
            "budget.limit=100000",
            f"hydra.run.dir={where}/run", f"tracking.uri=sqlite:///{where}/mlflow.db",
        ],
        cwd=where, env=os.environ | {"TMPDIR": str(where / "tmp")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def until_rollouts(where: Path, process: subprocess.Popen[str]) -> None:
    """Wait until training has recorded trajectories and goes on."""
    deadline = time.monotonic() + 120
    recorded = where / "run" / "trajectories.jsonl"
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        if recorded.exists() and recorded.stat().st_size > 0:
            return
        time.sleep(0.05)
    raise AssertionError("no trajectory after 120 s")


def containers(run: str) -> list[str]:
    done = subprocess.run(
        ["docker", "ps", "-aq", "--filter", f"label=thundersync.run={run}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.parametrize(
    "sandbox", ["bubblewrap", pytest.param("docker", marks=pytest.mark.docker)]
)
@pytest.mark.parametrize(
    ("schedule", "number", "code"),
    [
        ("stream", signal.SIGINT, 130),
        pytest.param("stream", signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param("async", signal.SIGTERM, 143, marks=pytest.mark.slow),
    ],
    ids=["stream-SIGINT", "stream-SIGTERM", "async-SIGTERM"],
)
def test_a_killed_run_leaves_nothing(
    tmp_path: Path, sandbox: str, schedule: str, number: int, code: int
):
    from mlflow.tracking import MlflowClient

    process = start(tmp_path, sandbox, schedule)
    until_rollouts(tmp_path, process)
    descendants = psutil.Process(process.pid).children(recursive=True)
    assert len(descendants) >= 2  # engine and learner, and sandboxes
    os.kill(process.pid, number)
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == code, stderr
    assert "Traceback" not in stderr
    _, alive = psutil.wait_procs(descendants, timeout=5)
    assert alive == []
    assert list((tmp_path / "tmp").glob("thundersync*")) == []
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert summary["sandboxes"]["created"] == summary["sandboxes"]["removed"] > 0
    assert summary["sandboxes"]["leaked"] == 0
    if sandbox == "docker":
        assert containers(f"{process.pid}-run") == []
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert [r.info.status for r in runs] == ["KILLED"]
