"""Processes that are started again: how often, what waits for them, and what is left at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from harness.cluster.lives import TRIES, Life, Lives
from harness.cluster.protocol import WorkerEnded
from harness.protocols import UsageError

ENDED = WorkerEnded("part/0: ended")


class Parts:
    """Processes on paper; `starts(life)` is what the start of one comes to."""

    def __init__(self, count: int, starts: Callable[[Life], Coroutine[Any, Any, Any]]) -> None:
        self.made: list[Life] = []
        self.ended: list[Life] = []
        self.said: list[str] = []
        self.lives = Lives("part", count, self._make, starts, self._end, self.said.append)

    def _make(self, number: int) -> Life:
        self.made.append(Life(number))
        return self.made[-1]

    async def _end(self, life: Life) -> None:
        self.ended.append(life)

    async def until_settled(self) -> None:
        while self.lives.starting:
            await asyncio.sleep(0)

    async def die(self, number: int) -> None:
        assert self.lives.lost(self.lives.all[number], WorkerEnded(f"part/{number}: ended"), "cost")


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 5))


async def well(life: Life) -> str:
    return f"began {life.number}"


def test_a_death_counts_once_and_an_answer_makes_up_for_it() -> None:
    async def scenario() -> None:
        parts = Parts(2, well)
        assert await parts.lives.start() == ["began 0", "began 1"]
        for _ in range(TRIES + 1):
            life = parts.lives.all[0]
            await parts.die(0)
            assert not parts.lives.lost(life, ENDED, "cost")
            assert parts.lives.alive == [parts.lives.all[1]]
            await parts.until_settled()
            parts.lives.answered(parts.lives.all[0])
        assert parts.lives.restarts == TRIES + 1 and len(parts.lives.alive) == 2
        assert parts.said[:2] == [
            "part/0: ended; it is started again, cost", "part/0 serves again",
        ]  # fmt: skip
        for _ in range(TRIES):
            await parts.die(0)
            await parts.until_settled()
        assert parts.said[-1] == "part/0 stays dead: part/0: ended; 1 of 2 are left"
        await parts.lives.close()
        assert set(parts.ended) == set(parts.made)

    run(scenario())


def test_whoever_waits_hears_that_none_comes_back() -> None:
    async def scenario() -> None:
        goes = True

        async def starts(life: Life) -> None:
            await asyncio.sleep(0)
            if not goes:
                raise WorkerEnded(f"part/{life.number}: no place for it")

        parts = Parts(1, starts)
        await parts.lives.start()
        goes = False
        await parts.die(0)
        waiting = asyncio.create_task(parts.lives.settle())
        await asyncio.sleep(0)
        assert not waiting.done()
        await waiting
        assert parts.lives.alive == [] and "no place for it" in parts.lives.last
        assert len(parts.made) == TRIES  # the first death counts as well

    run(scenario())


def test_one_that_does_not_start_is_told_when_none_is_under_way() -> None:
    """Else whoever closes would take one that comes up meanwhile for one that never was."""

    async def scenario() -> None:
        async def starts(life: Life) -> None:
            if life.number == 0:
                raise UsageError("part=0: not available")
            await asyncio.sleep(0.01)

        parts = Parts(2, starts)
        with pytest.raises(UsageError, match="not available"):
            await parts.lives.start()
        assert parts.lives.alive == [parts.made[1]]
        await parts.lives.close()
        assert parts.ended == parts.made

    run(scenario())


def test_one_that_is_starting_at_the_end_is_ended() -> None:
    async def scenario() -> None:
        hangs = False

        async def starts(life: Life) -> None:
            if hangs:
                await asyncio.Event().wait()

        parts = Parts(1, starts)
        await parts.lives.start()
        hangs = True
        await parts.die(0)
        while len(parts.made) == 1:
            await asyncio.sleep(0)
        await parts.lives.close()
        assert set(parts.ended) == set(parts.made) and len(parts.made) == 2

    run(scenario())
