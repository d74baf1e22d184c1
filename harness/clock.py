"""Wall time behind the Clock protocol. Everything that takes time, or runs side by side, goes
through it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Literal, TypeVar

T = TypeVar("T")


class WallClock:
    """Seconds of the system's monotonic clock since `origin_s`; concurrency is asyncio's."""

    kind: Literal["wall", "virtual"] = "wall"

    def __init__(self) -> None:
        self.origin_s = time.monotonic()
        self._running: set[asyncio.Task[Any]] = set()

    def now(self) -> float:
        return time.monotonic() - self.origin_s

    def resume(self, now_s: float) -> None:
        """A run goes on that has come to `now_s`: its time begins there."""
        self.origin_s = time.monotonic() - now_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Whoever awaits it gets the exception; marked as seen, it is not logged once more when
            # a sibling's failure has ended the run first.
            task.exception()

    async def cancel_all(self) -> None:
        """Cancel what was spawned and still runs, and wait until each has cleaned up."""
        while self._running:
            running = list(self._running)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def queue(self) -> asyncio.Queue[Any]:
        return asyncio.Queue()

    def semaphore(self, value: int) -> asyncio.Semaphore:
        return asyncio.Semaphore(value)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(seconds)
