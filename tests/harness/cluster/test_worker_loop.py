"""A service whose verbs are coroutines, in a worker process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harness.cluster.local import Worker, WorkerError

SERVICE = """
import asyncio

class Waiting:
    def __init__(self, log, fails=False):
        self.log, self.fails, self.event = log, fails, asyncio.Event()
    def note(self, line):
        with open(self.log, "a") as file:
            file.write(line + "\\n")
    async def start(self):
        await asyncio.sleep(0)
        self.note("start")
        if self.fails:
            raise RuntimeError("no such model")
    async def wait(self):
        await self.event.wait()
        return "woken"
    async def wake(self):
        self.event.set()
    async def fail(self, word):
        raise ValueError(word)
    async def close(self):
        self.note("close")
"""


@pytest.fixture
def log(write_service) -> Path:
    return write_service("waiting_service", SERVICE)


def test_calls_wait_side_by_side_and_an_error_is_the_callers(log: Path) -> None:
    async def scenario() -> None:
        worker = Worker("w", "waiting_service:Waiting", {"log": str(log)}, threads=1)
        await worker.start()
        try:
            waiting = asyncio.gather(worker.call("wait"), worker.call("wait"))
            with pytest.raises(WorkerError, match=r"w: ValueError: word[\s\S]*in fail"):
                await worker.call("fail", "word")
            await worker.call("wake")
            assert await waiting == ["woken", "woken"]
        finally:
            await worker.close()

    asyncio.run(scenario())
    assert log.read_text().split() == ["start", "close"]


def test_a_start_that_fails_is_told_and_closed(log: Path) -> None:
    async def scenario() -> None:
        options = {"log": str(log), "fails": True}
        worker = Worker("w", "waiting_service:Waiting", options, threads=1)
        try:
            with pytest.raises(WorkerError, match="no such model"):
                await worker.start()
        finally:
            await worker.close()

    asyncio.run(scenario())
    assert log.read_text().split() == ["start", "close"]
