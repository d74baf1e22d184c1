"""Numbered processes that are started again where they die: an engine's replicas, hosts of
sandboxes. One that dies `TRIES` times without an answer in between stays dead."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from harness.cluster.protocol import WorkerError
from harness.protocols import UsageError

TRIES = 3


@dataclass(eq=False)
class Life:
    """One process of a number, from its start to its death."""

    number: int
    alive: bool = field(default=False, kw_only=True)


L = TypeVar("L", bound=Life)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Lives(Generic[L]):
    """`make(number)` is a process that is not started; `begin` starts one and makes it ready to
    serve, `end` closes it, also one that never was. `name` is what `name/number` is called."""

    def __init__(
        self,
        name: str,
        count: int,
        make: Callable[[int], L],
        begin: Callable[[L], Awaitable[Any]],
        end: Callable[[L], Awaitable[None]],
        say: Callable[[str], None] = say,
    ) -> None:
        self._name, self._make, self._begin, self._end, self._say = name, make, begin, end, say
        self.all = [make(number) for number in range(count)]
        self._failed = [0] * count  # deaths since it last answered
        self._restarts: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Condition()
        self._closed = False
        self.last = ""  # what is known of the last death
        self.restarts = 0

    async def start(self) -> list[Any]:
        """All of them; what `begin` answered. Raises what the first that failed did, once none is
        under way: whoever closes finds each started or not."""
        began = await asyncio.gather(*map(self._first, self.all), return_exceptions=True)
        for answer in began:
            if isinstance(answer, BaseException):
                raise answer
        return began

    async def _first(self, life: L) -> Any:
        answer = await self._begin(life)
        life.alive = True
        return answer

    @property
    def alive(self) -> list[L]:
        return [life for life in self.all if life.alive]

    @property
    def starting(self) -> bool:
        """Whether any is being started again."""
        return bool(self._restarts)

    async def settle(self) -> None:
        """Wait until one is alive, or none is being started again."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.alive or not self._restarts)

    def answered(self, life: L) -> None:
        self._failed[life.number] = 0

    def lost(self, life: L, error: WorkerError, cost: str) -> bool:
        """True once for each process, however many calls its end has cut short."""
        if not life.alive:
            return False
        life.alive = False
        self._died(life.number, error)
        if not self._closed:
            self._say(f"{self.last}; it is started again, {cost}")
            self._restarts[life.number] = asyncio.create_task(
                self._restart(life), name=f"restart-{self._name}-{life.number}"
            )
        return True

    def _died(self, number: int, error: BaseException) -> None:
        self._failed[number] += 1
        self.last = " ".join(str(error).split()) or type(error).__name__

    async def _restart(self, dead: L) -> None:
        number = dead.number
        try:
            await self._end(dead)
            while self._failed[number] < TRIES:
                life = self._make(number)
                try:
                    await self._begin(life)
                except (WorkerError, UsageError, TimeoutError) as error:
                    self._died(number, error)
                except BaseException:  # cancelled: nobody else knows this process
                    await self._end(life)
                    raise
                else:
                    self.all[number] = life
                    life.alive = True
                    self.restarts += 1
                    self._say(f"{self._name}/{number} serves again")
                    return
                with contextlib.suppress(WorkerError):
                    await self._end(life)
            left = f"{len(self.alive)} of {len(self.all)} are left"
            self._say(f"{self._name}/{number} stays dead: {self.last}; {left}")
        finally:
            del self._restarts[number]
            async with self._changed:
                self._changed.notify_all()

    async def close(self) -> None:
        self._closed = True
        restarts = list(self._restarts.values())
        for restart in restarts:
            restart.cancel()
        await asyncio.gather(*restarts, return_exceptions=True)
        await asyncio.gather(*map(self._end, self.all))
