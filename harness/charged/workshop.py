"""Where real work is done while virtual time stands or passes: two threads beside the one that
drives the clock.

Work begins at the virtual moment at which it is asked for, and whoever asked waits for it, in real
time, at the virtual moment at which it is charged to end. Which of several pieces of work ends
first in reality is never seen.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from harness.cluster.memory import keep_memory

T = TypeVar("T")


class Workshop:
    """An asyncio loop in a thread of its own for sandboxes, and a bench for what is done one after
    the other, in the order of asking."""

    def __init__(self) -> None:
        keep_memory()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandboxes")
        self._thread.start()
        self._bench = ThreadPoolExecutor(1, thread_name_prefix="learner")

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """A coroutine beside others on the loop; those begun first take their first step first."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def bench(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """A function, behind those that were given before."""
        return self._bench.submit(work, *arguments)

    def close(self) -> None:
        """End the threads; work that goes on is cancelled, and may clean up."""
        self._bench.shutdown(wait=True, cancel_futures=True)
        if self._loop.is_closed():
            return
        self.begin(self._cancel()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _cancel(self) -> None:
        others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
