"""However a run ends, no process of vLLM's outlives it (vllm#55510); a dead EngineCore ends it."""

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


def start(where: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable, "-m", "harness.run", "engine=vllm", "experiment=smoke",
            "sandbox=bubblewrap", "evaluation.initial=false", "evaluation.final=false",
            "budget.limit=100000", "tracking=none", f"hydra.run.dir={where}/run",
        ],
        cwd=where, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def engine_core(process: subprocess.Popen[str]) -> psutil.Process | None:
    """vLLM's process, by the title that it gives itself as it begins."""
    for child in descendants(process):
        try:
            if child.cmdline()[:1] == ["VLLM::EngineCore"]:
                return child
        except psutil.Error:  # it ended meanwhile
            continue
    return None


def until(process: subprocess.Popen[str], what: str, where: Path) -> psutil.Process:
    """Wait until EngineCore is there (`starting`) or trajectories are recorded (`running`)."""
    deadline, lines = time.monotonic() + 600, where / "run" / "trajectories.jsonl"
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        core = engine_core(process)
        recorded = lines.exists() and lines.stat().st_size > 0
        if core is not None and (what == "starting" or recorded):
            return core
        time.sleep(0.05)
    raise AssertionError(f"not {what} after 600 s")


@pytest.mark.parametrize("what", ["starting", "running"])
def test_a_killed_run_leaves_no_process(what: str, tmp_path: Path) -> None:
    process = start(tmp_path)
    core = until(process, what, tmp_path)
    alive = descendants(process)
    assert core in alive
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    # One that was starting finds out as soon as it imports the harness's part.
    _, left = psutil.wait_procs(alive, timeout=10 if what == "running" else 120)
    assert left == []


def test_a_dead_engine_core_ends_the_run_with_its_name(tmp_path: Path) -> None:
    process = start(tmp_path)
    core = until(process, "running", tmp_path)
    alive = descendants(process)
    core.kill()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    last = stderr.splitlines()[-1]
    assert last == "error: engine/0: vLLM's EngineCore process ended", stderr
    assert "Traceback" not in stderr.partition("EngineCore process ended")[2]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["sandboxes"]["leaked"]) == ("failed", 0)
    _, left = psutil.wait_procs(alive, timeout=10)
    assert left == []
