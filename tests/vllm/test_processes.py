"""However a run ends, no process of vLLM's outlives it (vllm#55510); one that dies alone is started
again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

HALVES = ("engine.tensor_parallel=2", "schedule.engine_devices=2")
REPLICAS = ("engine.replicas=2", "schedule.engine_devices=2")
ON_RAY = ("cluster=ray", "cluster.start_timeout_s=300")


def start(where: Path, *overrides: str) -> subprocess.Popen[str]:
    with (where / "stderr.txt").open("w") as said:
        return subprocess.Popen(
            [
                sys.executable, "-m", "harness.run", "engine=vllm", "experiment=smoke",
                "sandbox=bubblewrap", "evaluation.initial=false", "evaluation.final=false",
                "budget.limit=100000", "tracking=none", f"hydra.run.dir={where}/run", *overrides,
            ],
            cwd=where, stdout=subprocess.DEVNULL, stderr=said, text=True,
        )  # fmt: skip


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def titled(process: subprocess.Popen[str], title: str) -> list[psutil.Process]:
    """vLLM's processes, by the title that each gives itself as it begins."""
    found = []
    for child in descendants(process):
        try:
            if child.cmdline()[:1] == [f"VLLM::{title}"]:
                found.append(child)
        except psutil.Error:  # it ended meanwhile
            continue
    return found


def until(process: subprocess.Popen[str], where: Path, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 900
    while not holds():
        said = (where / "stderr.txt").read_text()
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def recorded(where: Path) -> int:
    """Trajectories so far."""
    lines = where / "run" / "trajectories.jsonl"
    return lines.read_text().count("\n") if lines.exists() else 0


@pytest.mark.parametrize(
    ("what", "overrides"),
    [
        ("starting", ()), ("running", ()), ("starting", HALVES), ("running", HALVES),
        ("starting", ON_RAY), ("running", ON_RAY),
    ],
    ids=[
        "starting", "running", "starting in halves", "running in halves",
        "starting on Ray", "running on Ray",
    ],
)  # fmt: skip
def test_a_killed_run_leaves_no_process(
    what: str, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    process = start(tmp_path, *overrides)

    def begun() -> bool:
        cores = titled(process, "EngineCore")
        if what == "running":
            return recorded(tmp_path) > 0
        # In halves: the two below it import vLLM, beside a process of multiprocessing's own.
        return bool(cores) and (overrides != HALVES or len(cores[0].children()) >= 2)

    until(process, tmp_path, begun)
    assert len(titled(process, "EngineCore")) == 1
    if what == "running" and overrides == HALVES:
        assert titled(process, "Worker_TP0") and titled(process, "Worker_TP1")
    alive, cores = descendants(process), titled(process, "EngineCore")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    # One that was starting finds out as soon as it imports the harness's part; Ray's own agents
    # look for two minutes whether their cluster is there.
    if what == "running":
        _, left = psutil.wait_procs(cores if overrides == ON_RAY else alive, timeout=10)
        assert left == []
    _, left = psutil.wait_procs(alive, timeout=180 if overrides == ON_RAY else 120)
    assert left == []


@pytest.mark.parametrize(
    ("title", "overrides"),
    [
        ("EngineCore", ()), ("Worker_TP1", HALVES), ("EngineCore", REPLICAS),
        ("EngineCore", (*REPLICAS, *ON_RAY)),
    ],
    ids=["EngineCore", "one of two processes", "one of two replicas", "one of two on Ray"],
)  # fmt: skip
def test_one_that_dies_is_started_again_and_the_run_goes_on(
    title: str, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    process = start(tmp_path, *overrides)
    until(process, tmp_path, lambda: recorded(tmp_path) > 0)
    before = titled(process, title)
    before[0].kill()
    until(process, tmp_path, lambda: "it is started again" in (tmp_path / "stderr.txt").read_text())
    until(process, tmp_path, lambda: len(set(titled(process, title)) - set(before)) == 1)
    now = recorded(tmp_path)
    until(process, tmp_path, lambda: recorded(tmp_path) > now + 2)
    alive = descendants(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 143
    said = (tmp_path / "stderr.txt").read_text()
    which = "[01]" if set(REPLICAS) <= {*overrides} else "0"  # either may be the first found
    assert re.search(rf"engine/{which}: vLLM's EngineCore process ended; it is started again", said)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["sandboxes"]["leaked"]) == ("interrupted", 0)
    assert set(summary["infrastructure_errors"]) <= {"engine"}
    _, left = psutil.wait_procs(alive, timeout=10)
    assert left == []
