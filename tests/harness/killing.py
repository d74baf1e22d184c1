"""Runs as processes that are killed, and what they leave."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any


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


def until(process: subprocess.Popen[bytes], folder: Path, more: int) -> None:
    """Wait until the run has written `more` trajectories, or has ended."""
    began = lines(folder)
    deadline = time.monotonic() + 250
    # One that goes on has first cut its log to its checkpoint, or, played again, to nothing.
    while process.poll() is None and time.monotonic() < deadline:
        now = lines(folder)
        began = min(began, now)
        if now >= began + more:
            break
        time.sleep(0.002)


def kill(process: subprocess.Popen[bytes], folder: Path, more: int, delay_s: float) -> bool:
    """SIGKILL once the run has written `more` trajectories, and a moment later; whether it was
    still alive."""
    until(process, folder, more)
    time.sleep(delay_s)
    alive = process.poll() is None
    process.kill()
    _, said = process.communicate()
    assert alive or process.returncode == 0, said.decode()
    return alive


def weights(folder: Path) -> str:
    (path,) = (folder / "checkpoints").glob("weights-*.safetensors")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def trajectories(folder: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "trajectories.jsonl").open()]
    assert Counter(t["trajectory_id"] for t in found).most_common(1)[0][1] == 1
    return {t["trajectory_id"]: t for t in found}


def whole_lines(folder: Path) -> dict[str, str]:
    """Trajectory id -> its line, of the lines that are whole."""
    text = (folder / "trajectories.jsonl").read_text()
    kept = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return {t["trajectory_id"]: json.dumps(t) for t in kept}


def statuses(folder: Path) -> list[str]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    found = client.search_runs([e.experiment_id for e in client.search_experiments()])
    return [run.info.status for run in found]


def verbs_of(folder: Path, updates: int) -> int:
    """Lines of learner.jsonl up to the publication of so many updates."""
    verbs = [json.loads(line)["verb"] for line in (folder / "learner.jsonl").open()]
    return [n for n, verb in enumerate(verbs, start=1) if verb == "publish"][updates - 1]


def relearnt(folder: Path) -> None:
    """The weights are those that the run's records alone make, bit for bit."""
    played = subprocess.run(
        [sys.executable, "-m", "harness.relearn", f"run={folder}"], capture_output=True, text=True
    )
    assert played.returncode == 0, played.stdout + played.stderr


def logged_updates(folder: Path) -> set[int]:
    """Of the store's one finished run."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'thundersync'")
    runs = client.search_runs([experiment.experiment_id])
    (finished,) = (r for r in runs if r.info.status == "FINISHED")
    return {m.step for m in client.get_metric_history(finished.info.run_id, "update")}
