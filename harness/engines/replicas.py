"""Several replicas as one engine, and what the loss of one of them costs.

A session stays on the replica that had the fewest when it began, which holds its keys and values.
Where a replica's process dies, what it had begun is lost to infrastructure, of kind `engine`: those
trajectories start again with their seeds, like any lost ones. It is started again
(harness.cluster.lives), takes the newest weights and only then new sessions; meanwhile the others
go on. When none is left the run ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from harness.cluster.lives import Life, Lives, say
from harness.cluster.protocol import WorkerEnded
from harness.protocols import Completion, Generation, InfrastructureError, Interval

_COST = "what it had begun starts again elsewhere"


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
class _Life(Life):
    """`version` is that of its weights."""

    engine: Replica
    sessions: int = 0
    version: int | None = None


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
        say: Callable[[str], None] = say,
    ) -> None:
        self._share = share
        self._lives = Lives(
            "engine", count,
            make=lambda number: _Life(number, make(number)),
            begin=self._begin, end=lambda life: life.engine.close(), say=say,
        )  # fmt: skip
        self._sessions: dict[str, _Life] = {}
        self._weights: tuple[Any, int] | None = None

    async def start(self) -> None:
        await self._lives.start()

    async def _begin(self, life: _Life) -> None:
        """With the newest weights, which may change meanwhile."""
        await life.engine.start()
        while self._weights is not None and life.version != self._weights[1]:
            where, version = self._weights
            await life.engine.update_weights(where, version)
            life.version = version

    @property
    def restarts(self) -> int:
        return self._lives.restarts

    @property
    def pids(self) -> list[int]:
        """Of the replicas that are alive."""
        return [life.engine.pid for life in self._lives.alive]

    @property
    def pid(self) -> int:
        return self._lives.all[0].engine.pid

    # -- the protocol ------------------------------------------------------------------------------

    async def generate(self, request: Generation) -> Completion:
        life = self._sessions.get(request.session) or await self._place(request.session)
        if not life.alive:
            raise InfrastructureError(
                "engine", f"engine/{life.number} ended, and what it had of {request.session}"
            )
        try:
            completion = await life.engine.generate(request)
        except WorkerEnded as error:
            self._lives.lost(life, error, _COST)
            raise InfrastructureError("engine", str(error)) from error
        self._lives.answered(life)
        return completion

    async def _place(self, session: str) -> _Life:
        """A new session's replica, as soon as there is one."""
        await self._lives.settle()
        alive = self._lives.alive
        if not alive:
            raise WorkerEnded(f"no engine replica is left; the last: {self._lives.last}")
        life = min(alive, key=lambda one: one.sessions)
        life.sessions += 1
        self._sessions[session] = life
        return life

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

        await asyncio.gather(*map(load, self._lives.alive))
        await self._lives.settle()

    async def drain_intervals(self) -> list[Interval]:
        """What a dead replica would have said is gone with it."""
        drained = await asyncio.gather(
            *(self._ask(one, lambda engine: engine.drain_intervals()) for one in self._lives.alive)
        )
        return [interval for intervals in drained for interval in intervals or ()]

    async def _ask(self, life: _Life, verb: Callable[[Replica], Awaitable[Any]]) -> Any:
        """None of one that is dead, or dies of it."""
        if not life.alive:
            return None
        try:
            return await verb(life.engine)
        except WorkerEnded as error:
            self._lives.lost(life, error, _COST)
            return None

    async def close(self) -> None:
        await self._lives.close()
