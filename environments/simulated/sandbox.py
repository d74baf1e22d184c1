"""Sandboxes on paper: they take the time of the life that they are for, and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from environments.protocols import ExecResult, Sandbox, SandboxCounters, SandboxSpec
from environments.simulated.life import COMMANDS, STARTS, Life


class Time(Protocol):
    """The part of a clock that is needed here."""

    def sleep(self, seconds: float) -> Awaitable[None]: ...

    def semaphore(self, value: int) -> Any: ...


@dataclass(frozen=True)
class SimulatedSpec(SandboxSpec):
    """For one life."""

    life: Life | None = None


class _AtWork:
    """While a sandbox's processes run; any number of them."""

    def __init__(self, busy: Callable[[int], None]) -> None:
        self._busy = busy

    def __enter__(self) -> None:
        self._busy(1)

    def __exit__(self, *unused: object) -> None:
        self._busy(-1)


class SimulatedSandbox:
    """`exec` takes the tool time of the turn that its life is at."""

    from_image = True

    def __init__(self, sandbox_id: str, life: Life, provider: SimulatedProvider) -> None:
        self.sandbox_id = sandbox_id
        self._life = life
        self._provider: SimulatedProvider | None = provider
        self._time, self._at_work = provider.time, provider.at_work

    async def exec(
        self, command: str, *, timeout_s: float, max_output_bytes: int = 65536
    ) -> ExecResult:
        life = self._life
        took_s = min(life.turn.tool_s, timeout_s)
        with self._at_work:
            await self._time.sleep(took_s)
        life.may_fail(COMMANDS, life.number)
        timed_out = life.turn.tool_s > timeout_s
        return ExecResult("", None if timed_out else 0, took_s, timed_out)

    async def put(self, files: Mapping[str, bytes], *, base: str | None = None) -> None:
        """Nothing is kept."""

    async def get(self, path: str) -> bytes:
        return b""

    async def end_processes(self) -> None:
        """There are none."""

    async def allow_hosts(self, hosts: Sequence[str]) -> None:
        """There is no network."""

    async def hand_over(self, folders: Sequence[str]) -> None:
        """There are no users."""

    async def stop(self) -> None:
        if self._provider is not None:
            self._provider.stopped()
            self._provider = None


class SimulatedProvider:
    """At most `max_parallel` sandboxes at once, agents' and verifiers', of which `start_parallel`
    may be starting; their host begins one every `start_gap_s`. `busy` is told 1 when one begins to
    work and -1 when it ends."""

    kind = "simulated"

    def __init__(
        self,
        time: Time,
        why: str,
        max_parallel: int,
        start_parallel: int | None = None,
        busy: Callable[[int], None] | None = None,
        start_gap_s: float = 0.0,
    ) -> None:
        self.time = time
        self.why = why
        self.counters = SandboxCounters()
        self.at_work: AbstractContextManager[Any] = nullcontext() if busy is None else _AtWork(busy)
        self._places = time.semaphore(max_parallel)
        self._starts: AbstractAsyncContextManager[Any] = (
            nullcontext() if start_parallel is None else time.semaphore(start_parallel)
        )

        self._start_gap_s = start_gap_s
        self._host = time.semaphore(1)

    async def start(self, spec: SandboxSpec) -> Sandbox:
        assert isinstance(spec, SimulatedSpec) and spec.life is not None
        await self._places.acquire()
        self.counters.created += 1
        try:
            async with self._starts:
                if self._start_gap_s:
                    async with self._host:
                        await self.time.sleep(self._start_gap_s)
                with self.at_work:
                    await self.time.sleep(spec.life.plan.start_s)
            spec.life.may_fail(STARTS, 0)
        except BaseException:
            self.stopped()
            raise
        return SimulatedSandbox(f"simulated-{self.counters.created}", spec.life, self)

    async def occupied(self, seconds: float) -> None:
        """A sandbox of its own for so long: a verifier's."""
        await self._places.acquire()
        self.counters.created += 1
        try:
            with self.at_work:
                await self.time.sleep(seconds)
        finally:
            self.stopped()

    def stopped(self) -> None:
        self.counters.removed += 1
        self._places.release()

    async def close(self) -> None:
        self.counters.leaked = self.counters.created - self.counters.removed
