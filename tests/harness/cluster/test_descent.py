"""Who is above a process, and that it ends with it: what an engine's own processes need."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.cluster.local import Worker
from harness.cluster.worker import descends_from


def test_parents_are_and_children_are_not() -> None:
    assert descends_from(os.getpid()) and descends_from(os.getppid())
    with subprocess.Popen(["sleep", "60"]) as child:
        assert not descends_from(child.pid)
        child.kill()


def test_a_parent_that_ended_is_none_though_its_number_is_there() -> None:
    """It waits to be reaped, as one whose own parent was killed with it may for a while."""
    orphan = (
        "import os, sys\n"
        "from harness.cluster.worker import descends_from\n"
        "parent = int(sys.argv[1])\n"
        "sys.stdin.read()\n"
        "print(os.path.exists(f'/proc/{parent}'), descends_from(parent), flush=True)"
    )
    middle = (
        "import os, subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {orphan!r}, str(os.getpid())])"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", middle], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None and parent.stdout is not None
    while psutil.Process(parent.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    parent.stdin.close()
    assert parent.stdout.read() == "True False\n"
    assert parent.wait() == 0
    parent.stdout.close()


SERVICE = """
import multiprocessing, time

def nest(pipe):
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    child.start()
    pipe.send(child.pid)
    time.sleep(60)

class Starting:
    def begin(self):
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("spawn").Process(target=nest, args=(theirs,))
        child.start()
        return child.pid, ours.recv()
"""


def test_what_a_service_starts_ends_with_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what that starts: neither imports anything of the harness by itself."""
    (tmp_path / "starting_service.py").write_text(SERVICE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")

    async def scenario() -> None:
        worker = Worker("w", "starting_service:Starting", {}, threads=1)
        await worker.start()
        below = [psutil.Process(pid) for pid in await worker.call("begin")]
        psutil.Process(worker.pid).kill()
        _, left = psutil.wait_procs(below, timeout=20)
        await worker.close()
        assert left == []

    asyncio.run(scenario())
