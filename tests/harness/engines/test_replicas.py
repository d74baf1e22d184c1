"""Replicas as one engine: who serves whom, and what the death of one costs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from harness.cluster.lives import TRIES
from harness.cluster.protocol import WorkerEnded
from harness.engines.client import TorchEngineClient
from harness.engines.replicas import Replicas
from harness.protocols import Completion, Generation, InfrastructureError, Interval, VersionSpan


def ask(session: str, new: int = 4) -> Generation:
    return Generation(session, [1, 2, 3], new, temperature=1.0, seed=3, stop_tokens=())


class Process:
    """A replica without a process: its death is told, not made. Real ones die below."""

    made: ClassVar[list[Process]] = []

    def __init__(self, number: int, starts: Callable[[], bool] = lambda: True) -> None:
        self.number, self.pid, self._starts = number, len(self.made), starts
        self.version: int | None = None
        self.served: list[str] = []
        self.loaded: list[Any] = []
        self._end: asyncio.Future[None] | None = None
        self.hold: asyncio.Event | None = None
        self.closed = False
        self.made.append(self)

    async def start(self) -> None:
        self._end = asyncio.get_running_loop().create_future()
        if not self._starts():
            self.die()
        await self._unless_dead()

    def die(self) -> None:
        assert self._end is not None
        if not self._end.done():
            self._end.set_exception(WorkerEnded(f"engine/{self.number}: ended"))
            self._end.exception()

    async def _unless_dead(self) -> None:
        assert self._end is not None
        if self._end.done():
            await self._end

    async def generate(self, request: Generation) -> Completion:
        await self._unless_dead()
        self.served.append(request.session)
        if self.hold is not None:
            waiting = asyncio.ensure_future(self.hold.wait())
            assert self._end is not None
            await asyncio.wait({waiting, self._end}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        await self._unless_dead()
        version = self.version or 0
        return Completion([self.pid], [0.0], [VersionSpan(version, 0, 1)], "length")

    async def release(self, session: str) -> None:
        await self._unless_dead()

    async def update_weights(self, path: Any, version: int, in_flight: bool = True) -> None:
        await self._unless_dead()
        self.loaded.append(path)
        self.version = version

    async def drain_intervals(self) -> list[Interval]:
        await self._unless_dead()
        return [Interval(f"engine/{self.number}", "generate", 0.0, 1.0)]

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def made() -> list[Process]:
    Process.made = []
    return Process.made


def run(scenario: Any, count: int = 2, **options: Any) -> list[str]:
    """What the replicas said."""
    said: list[str] = []

    async def body() -> None:
        replicas = Replicas(options.pop("make", Process), count, say=said.append, **options)
        await replicas.start()
        try:
            async with asyncio.timeout(5):
                await scenario(replicas)
        finally:
            await replicas.close()
        assert all(process.closed for process in Process.made)

    asyncio.run(body())
    return said


def test_a_session_stays_and_a_new_one_goes_where_there_are_fewest(made) -> None:
    async def scenario(engine: Replicas) -> None:
        for session in "abc":
            await engine.generate(ask(session))
        await engine.release("b")
        for session in "dace":
            await engine.generate(ask(session))
        assert made[0].served == ["a", "c", "a", "c"]
        assert made[1].served == ["b", "d", "e"]
        assert len(await engine.drain_intervals()) == 2

    assert run(scenario) == []


def test_a_death_loses_what_was_begun_there_and_nothing_else(made) -> None:
    async def scenario(engine: Replicas) -> None:
        made[0].hold = asyncio.Event()
        cut = asyncio.create_task(engine.generate(ask("cut")))  # in the middle of a turn
        await asyncio.sleep(0)
        await engine.generate(ask("other"))
        made[0].die()
        with pytest.raises(InfrastructureError, match="engine: engine/0: ended") as lost:
            await cut
        assert lost.value.kind == "engine"
        for _ in range(2):  # it had its keys and values there, and its place in the stream of seeds
            with pytest.raises(InfrastructureError, match="engine/0 ended, and what it had of cut"):
                await engine.generate(ask("cut"))
        await engine.release("cut")
        await engine.generate(ask("other"))
        while engine.restarts < 1:
            await asyncio.sleep(0)
        await engine.generate(ask("cut-r1"))
        assert made[1].served == ["other", "other"] and made[2].served == ["cut-r1"]

    said = run(scenario)
    assert said == [
        "engine/0: ended; it is started again, what it had begun starts again elsewhere",
        "engine/0 serves again",
    ]


def test_between_turns_too(made) -> None:
    """A trajectory whose replica died while its tool call ran is lost at its next turn."""

    async def scenario(engine: Replicas) -> None:
        await engine.generate(ask("a"))
        made[0].die()
        assert await engine.drain_intervals() == []  # here it is noticed
        with pytest.raises(InfrastructureError, match="engine/0"):
            await engine.generate(ask("a"))

    run(scenario, count=1)


def test_one_that_starts_again_has_the_newest_weights_before_it_serves(made) -> None:
    async def scenario(engine: Replicas) -> None:
        shared: list[str] = []

        async def share(path: str) -> Any:
            shared.append(path)
            return ("object", path)

        engine._share = share
        await engine.update_weights("w1", 1)
        made[0].die()
        await engine.update_weights("w2", 2)
        await engine.update_weights("w3", 3)
        while engine.restarts < 1:
            await asyncio.sleep(0)
        spans = [(await engine.generate(ask(s))).version_spans[0].version for s in "abcd"]
        assert spans == [3, 3, 3, 3]
        assert shared == ["w1", "w2", "w3"]  # once, however many replicas
        assert made[1].loaded == [("object", f"w{n}") for n in (1, 2, 3)]
        assert made[2].loaded[-1] == ("object", "w3")

    run(scenario)


def test_the_run_goes_on_with_those_left_and_ends_without_any(made) -> None:
    living = {0: True, 1: True}

    def make(number: int) -> Process:
        return Process(number, lambda: living[number])

    async def scenario(engine: Replicas) -> None:
        await engine.generate(ask("a"))
        living[0] = False
        made[0].die()
        await engine.drain_intervals()
        while engine._lives.starting:
            await asyncio.sleep(0)
        assert [(await engine.generate(ask(s))).tokens_T for s in "bc"] == [[1], [1]]
        await engine.update_weights("w", 1)
        living[1] = False
        made[1].die()
        await engine.drain_intervals()
        with pytest.raises(WorkerEnded, match="no engine replica is left; the last: engine/1"):
            await engine.generate(ask("d"))

    said = run(scenario, make=make)
    assert said[1] == "engine/0 stays dead: engine/0: ended; 1 of 2 are left"
    assert said[-1].endswith("0 of 2 are left")
    assert len(made) == 2 + 2 * (TRIES - 1)


@pytest.mark.slow
def test_a_killed_process_is_started_again(policy: Path, other_policy: Path) -> None:
    async def scenario() -> None:
        def make(number: int) -> TorchEngineClient:
            return TorchEngineClient(policy, slots=4, max_context=64, name=f"engine/{number}")

        engine = Replicas(make, 2)
        await engine.start()
        try:
            await engine.update_weights(str(other_policy / "model.safetensors"), 2)
            whole = await engine.generate(ask("whole", 40))
            killed = engine.pids[1]
            under_way = asyncio.create_task(engine.generate(ask("cut", 40)))
            await asyncio.sleep(0)
            os.kill(killed, signal.SIGKILL)
            with pytest.raises(InfrastructureError, match=r"engine/1: .*\(exit code -9\)"):
                await under_way
            while not engine.restarts:
                await asyncio.sleep(0.01)
            again = [await engine.generate(ask(f"again-{n}", 40)) for n in range(2)]
            assert [a.tokens_T for a in again] == [whole.tokens_T] * 2  # the same seed
            assert [s.version for a in again for s in a.version_spans] == [2, 2]
            assert killed not in engine.pids and len(engine.pids) == 2
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(scenario(), 120))
