"""The main job on terminal tasks: it trains on groups that the tests told apart."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_main_job_trains_on_terminal_tasks(tmp_path) -> None:
    arguments = ["schedule=stream", "env=terminal_bench", "experiment=smoke", "tracking=none"]
    arguments += ["sandbox=bubblewrap", "evaluation.initial=false", "evaluation.final=false"]
    ended = subprocess.run(
        [sys.executable, "-m", "harness.run", *arguments, f"hydra.run.dir={tmp_path}/run"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["status"], summary["updates"], summary["env"]) == (
        *("finished", 2, "terminal_bench"),
    )
    assert summary["sandboxes"]["leaked"] == 0
    lines = (tmp_path / "run/trajectories.jsonl").read_text().splitlines()
    rewards: dict[int, set[float]] = {}
    for line in map(json.loads, lines):
        rewards.setdefault(line["group"], set()).add(line["reward"])
    assert any(found == {0.0, 1.0} for found in rewards.values())
    with (tmp_path / "run/updates.csv").open() as file:
        updates = list(csv.DictReader(file))
    assert any(float(row["gradient_norm"]) > 0 for row in updates)
