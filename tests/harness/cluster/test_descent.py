"""Who is above a process: what an engine's process asks where its parent may have ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil

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
