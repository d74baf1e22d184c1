"""Several replicas as one engine, and what the loss of one of them costs.

A session stays on the replica that had the fewest when it began, which holds its keys and values.
Where a replica's process dies, what it had begun is lost to infrastructure, of kind `engine`: those
trajectories start again with their seeds, like any lost ones. It is started again, takes the newest
weights and only then new sessions; meanwhile the others go on. One that dies `TRIES` times without
an answer in between stays dead; when none is left the run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from harness.cluster.protocol import WorkerEnded, WorkerError
from harness.protocols import (
    Completion,
    Generation,
    InfrastructureError,
    Interval,
    UsageError,
)

TRIES = 3


class Replica(Protocol):
    """An engine in a process of its own (harness.engines.client)."""

    @property
    def pid(self) -> int: ...
    async def start(self) -> None: ...
    async def generate(self, request: Generation) -> Completion: ...
    async def release(self, session: str) -> None: ...
    async def update_weights(self, path: Any, version: int, in_flight: bool = True) -> None: ...
    async def drain_intervals(self) -> list[Interval]: ...
    async def close(self) -> None: ...


@dataclass(eq=False)
class _Life:
    """One process of a replica, from its start to its death. `version` is that of its weights."""

    number: int
    engine: Replica
    alive: bool = False
    sessions: int = 0
    version: int | None = None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def _as_it_is(path: str) -> Any:
    return path


class Replicas:
    """The Engine protocol over `count` replicas, made by `make(number)`. `share` is what each is
    handed in place of the path of new weights, made once for all of them."""

    def __init__(
        self,
        make: Callable[[int], Replica],
        count: int,
        share: Callable[[str], Awaitable[Any]] = _as_it_is,
        say: Callable[[str], None] = _say,
    ) -> None:
        self._make, self._share, self._say = make, share, say
        self._lives = [_Life(number, make(number)) for number in range(count)]
        self._sessions: dict[str, _Life] = {}
        self._weights: tuple[Any, int] | None = None
        self._failed = [0] * count  # deaths since it last answered
        self._restarts: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Condition()
        self._last = ""
        self._closed = False
        self.restarts = 0

    async def start(self) -> None:
        await asyncio.gather(*(life.engine.start() for life in self._lives))
        for life in self._lives:
            life.alive = True

    @property
    def pids(self) -> list[int]:
        """Of the replicas that are alive."""
        return [life.engine.pid for life in self._lives if life.alive]

    @property
    def pid(self) -> int:
        return self._lives[0].engine.pid

    # -- the protocol ------------------------------------------------------------------------------

    async def generate(self, request: Generation) -> Completion:
        life = self._sessions.get(request.session) or await self._begin(request.session)
        if not life.alive:
            raise InfrastructureError(
                "engine", f"engine/{life.number} ended, and what it had of {request.session}"
            )
        try:
            completion = await life.engine.generate(request)
        except WorkerEnded as error:
            self._lost(life, error)
            raise InfrastructureError("engine", str(error)) from error
        self._failed[life.number] = 0
        return completion

    async def _begin(self, session: str) -> _Life:
        """A new session's replica, as soon as there is one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._alive() or not self._restarts)
        alive = self._alive()
        if not alive:
            raise WorkerEnded(f"no engine replica is left; the last: {self._last}")
        life = min(alive, key=lambda one: one.sessions)
        life.sessions += 1
        self._sessions[session] = life
        return life

    def _alive(self) -> list[_Life]:
        return [life for life in self._lives if life.alive]

    async def release(self, session: str) -> None:
        life = self._sessions.pop(session, None)
        if life is None:
            return
        life.sessions -= 1
        await self._ask(life, lambda engine: engine.release(session))

    async def update_weights(self, path: str, version: int, in_flight: bool = True) -> None:
        """All replicas load them side by side; one that is starting loads them before it serves."""
        where = await self._share(path)
        self._weights = where, version

        async def load(life: _Life) -> None:
            await self._ask(life, lambda e: e.update_weights(where, version, in_flight))
            life.version = version

        await asyncio.gather(*(load(life) for life in self._alive()))
        async with self._changed:
            await self._changed.wait_for(lambda: self._alive() or not self._restarts)

    async def drain_intervals(self) -> list[Interval]:
        """What a dead replica would have said is gone with it."""
        drained = await asyncio.gather(
            *(self._ask(life, lambda engine: engine.drain_intervals()) for life in self._alive())
        )
        return [interval for intervals in drained for interval in intervals or ()]

    async def _ask(self, life: _Life, verb: Callable[[Replica], Awaitable[Any]]) -> Any:
        """None of one that is dead, or dies of it."""
        if not life.alive:
            return None
        try:
            return await verb(life.engine)
        except WorkerEnded as error:
            self._lost(life, error)
            return None

    async def close(self) -> None:
        self._closed = True
        for restart in self._restarts.values():
            restart.cancel()
        await asyncio.gather(*self._restarts.values(), return_exceptions=True)
        await asyncio.gather(*(life.engine.close() for life in self._lives))

    # -- the loss of a replica ---------------------------------------------------------------------

    def _lost(self, life: _Life, error: WorkerError) -> None:
        """Once for each process, however many requests its end has cut short."""
        if not life.alive:
            return
        life.alive = False
        if self._closed:
            return
        number = life.number
        self._died(number, error)
        self._restarts[number] = asyncio.create_task(
            self._restart(life), name=f"restart-engine-{number}"
        )

    def _died(self, number: int, error: BaseException) -> None:
        self._failed[number] += 1
        self._last = " ".join(str(error).split()) or type(error).__name__

    async def _restart(self, dead: _Life) -> None:
        number = dead.number
        self._say(f"{self._last}; it is started again, what it had begun starts again elsewhere")
        try:
            await dead.engine.close()
            while self._failed[number] < TRIES:
                life = _Life(number, self._make(number))
                try:
                    await life.engine.start()
                    await self._catch_up(life)
                except (WorkerError, UsageError, TimeoutError) as error:
                    self._died(number, error)
                except BaseException:  # cancelled: nobody else knows this process
                    await life.engine.close()
                    raise
                else:
                    self._lives[number] = life
                    life.alive = True
                    self.restarts += 1
                    return
                with contextlib.suppress(WorkerError):
                    await life.engine.close()
            left = len(self._alive())
            self._say(f"engine/{number} stays dead: {self._last}; {left} replicas are left")
        finally:
            del self._restarts[number]
            async with self._changed:
                self._changed.notify_all()

    async def _catch_up(self, life: _Life) -> None:
        """With weights that may change meanwhile."""
        while self._weights is not None and life.version != self._weights[1]:
            where, version = self._weights
            await life.engine.update_weights(where, version)
            life.version = version
