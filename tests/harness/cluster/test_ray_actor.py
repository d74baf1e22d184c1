"""What runs inside a Ray actor, without Ray: calls have their turns, whatever becomes of one."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.cluster.ray_actor import Actor


class Echo:
    def say(self, what: Any) -> Any:
        return what


def test_a_file_that_cannot_be_written_holds_nobody_up(monkeypatch, tmp_path: Path) -> None:
    """A full disk while new weights arrive: the call says so, and those after it are answered."""

    async def scenario() -> None:
        actor = Actor()
        actor._service = Echo()
        third = asyncio.create_task(actor.call(2, "say", ("third",), {}))
        second = asyncio.create_task(actor.call_with_file(1, "say", b"", "no/such/folder", ()))
        await asyncio.sleep(0)
        first = await actor.call(0, "say", ("first",), {})
        kind, (name, _, _) = await second
        assert (kind, name) == ("error", "FileNotFoundError")
        assert (first, await third) == (("ok", "first"), ("ok", "third"))
        assert not list(tmp_path.glob("thundersync*"))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asyncio.run(asyncio.wait_for(scenario(), 10))


SERVICE = """
import os, subprocess, sys

class Starter:
    def __init__(self, log, fails=False):
        self.log, self.fails, self.count = log, fails, 0
    def note(self, line):
        with open(self.log, "a") as file:
            file.write(line + "\\n")
    async def start(self):
        self.note("start")
        if self.fails:
            raise RuntimeError("no such model")
    async def next(self):
        self.count += 1
        return self.count
    async def where(self):
        return os.getpid(), os.environ["OMP_NUM_THREADS"]
    async def fail(self, word):
        raise ValueError(word)
    async def read(self, path, version):
        with open(path, "rb") as file:
            return file.read(), version
    async def leave(self):
        os._exit(3)
    async def close(self):
        self.note("close")
"""


@pytest.fixture
def log(write_service) -> Path:
    return write_service("starter_service", SERVICE)


async def _built(log: Path, **more: Any) -> tuple[Actor, Any]:
    actor = Actor()
    options = {"log": str(log), **more}
    return actor, await actor.build("engine/0", "starter_service:Starter", options, 3)


def test_an_asynchronous_service_is_in_a_process_below(log: Path) -> None:
    """As one that starts processes of its own has it without Ray, and called in order."""

    async def scenario() -> None:
        actor, answer = await _built(log)
        assert answer == ("ok", True)  # there is something to close
        asked = [asyncio.create_task(actor.call(n, "next", (), {})) for n in reversed(range(5))]
        assert [(await one)[1] for one in reversed(asked)] == [1, 2, 3, 4, 5]
        _, (pid, threads) = await actor.call(5, "where", (), {})
        assert pid != os.getpid() and psutil.Process(pid).ppid() == os.getpid()
        assert threads == "3"
        read = await actor.call_with_file(6, "read", b"weights", "weights-1", (1,))
        assert read == ("ok", (b"weights", 1))
        kind, (name, message, _) = await actor.call(7, "fail", ("word",), {})
        assert (kind, name) == ("error", "WorkerError")
        assert message.startswith("engine/0: ValueError: word\n--- in the worker ---\n")
        await actor.close()
        assert not psutil.pid_exists(pid)
        assert log.read_text().split() == ["start", "close"]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_the_end_of_the_process_below_is_the_actors(log: Path) -> None:
    async def scenario() -> None:
        actor, _ = await _built(log)
        kind, (name, message, _) = await actor.call(0, "leave", (), {})
        assert (kind, name) == ("error", "WorkerEnded")
        assert message == "engine/0: the worker process ended (exit code 3)"
        await actor.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_start_below_that_fails_is_told_and_leaves_no_process(log: Path) -> None:
    before = psutil.Process().children()  # of other tests

    async def scenario() -> None:
        actor, (kind, (name, message, _)) = await _built(log, fails=True)
        assert (kind, name) == ("error", "WorkerError")
        assert message.startswith("engine/0: RuntimeError: no such model\n")
        await actor.close()
        assert log.read_text().split() == ["start", "close"]
        assert set(psutil.Process().children()) <= {*before}

    asyncio.run(asyncio.wait_for(scenario(), 60))
