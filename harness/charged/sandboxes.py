"""Real sandboxes in virtual time: every command runs, and takes what the workload says.

What happens to one sandbox happens in order, as soon as it is asked for; its result is taken at the
virtual moment at which it is charged to end. A sandbox holds its place among
`sandbox.max_parallel` from its start to its stop in virtual time, so that no more are alive at once
than a run on the wall has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

from environments.protocols import ExecResult, Sandbox, SandboxProvider, SandboxSpec
from environments.simulated.sandbox import SimulatedProvider
from environments.simulated.workload import Plan
from harness.charged.workshop import Workshop
from harness.virtual import VirtualClock

T = TypeVar("T")
Prepare = Callable[[Sandbox], Awaitable[None]]


@dataclass(frozen=True)
class ChargedSpec(SandboxSpec):
    """A real sandbox for one life; `prepare` brings it to its task's starting state."""

    real: SandboxSpec | None = None
    plan: Plan | None = None
    prepare: Prepare | None = None


# Python hashes strings alike in every run, and keeps no bytecode, whose freshness is a matter of
# times. (A program started with -I does as it likes.)
_SETTINGS = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
# What git then says of changed files hangs on their contents alone, not on how soon after a
# checkout they were written.
_REFRESH = "git update-index -q --refresh"
_REFRESH_LIMIT_S = 20.0


class Repeatable:
    """The real provider, whose sandboxes do the same in every run as far as settings go."""

    def __init__(self, provider: SandboxProvider) -> None:
        self._provider = provider
        self.kind, self.why, self.counters = provider.kind, provider.why, provider.counters

    async def start(self, spec: SandboxSpec) -> Sandbox:
        environment = {**spec.environment, **_SETTINGS}
        return await self._provider.start(replace(spec, environment=environment))

    async def close(self) -> None:
        await self._provider.close()


class ChargedSandbox:
    """`exec` takes the tool time of its life's next turn, and the limit where the command really
    ran into it."""

    from_image = False

    def __init__(self, spec: ChargedSpec, provider: ChargedProvider) -> None:
        assert spec.plan is not None
        self.sandbox_id = "charged"
        self._spec, self._provider = spec, provider
        self._turns = iter(spec.plan.turns)
        self._line = asyncio.Lock()
        self._sandbox: Sandbox | None = None
        self._stopped = False
        self.started = provider.workshop.begin(self._start())

    async def _start(self) -> None:
        spec = self._spec
        assert spec.real is not None
        async with self._line:
            self._sandbox = await self._provider.real.start(spec.real)
            if spec.prepare is not None:
                await spec.prepare(self._sandbox)

    def then(self, work: Callable[[Sandbox], Awaitable[T]]) -> Future[T]:
        """Begin work on it behind all that it was asked for before."""

        async def next_in_line() -> T:
            async with self._line:
                assert self._sandbox is not None
                return await work(self._sandbox)

        return self._provider.workshop.begin(next_in_line())

    async def exec(
        self, command: str, *, timeout_s: float, max_output_bytes: int = 65536
    ) -> ExecResult:
        provider = self._provider

        async def run(sandbox: Sandbox) -> ExecResult:
            if "git" in command:
                await sandbox.exec(_REFRESH, timeout_s=_REFRESH_LIMIT_S)
            return await sandbox.exec(
                command, timeout_s=timeout_s, max_output_bytes=max_output_bytes
            )

        job = self.then(run)
        took_s = min(next(self._turns).tool_s, timeout_s)
        with provider.at_work:
            await provider.time.sleep(took_s)
            result = job.result()
            if result.timed_out:
                await provider.time.sleep(timeout_s - took_s)
                took_s = timeout_s
        return replace(result, duration_s=took_s, cpu_s=0.0)

    async def stop(self) -> None:
        """Its place is free at once; how its removal went is known when the provider closes."""
        if not self._stopped:
            self._stopped = True
            self._provider.removed_by(self._provider.workshop.begin(self._stop()))

    async def _stop(self) -> None:
        async with self._line:
            if self._sandbox is not None:
                await self._sandbox.stop()

    async def put(self, files: Mapping[str, bytes], *, base: str | None = None) -> None:
        self.then(lambda sandbox: sandbox.put(files, base=base)).result()

    async def get(self, path: str) -> bytes:
        return self.then(lambda sandbox: sandbox.get(path)).result()

    async def end_processes(self) -> None:
        self.then(lambda sandbox: sandbox.end_processes()).result()

    async def allow_hosts(self, hosts: Sequence[str]) -> None:
        self.then(lambda sandbox: sandbox.allow_hosts(hosts)).result()

    async def hand_over(self, folders: Sequence[str]) -> None:
        self.then(lambda sandbox: sandbox.hand_over(folders)).result()


class ChargedProvider(SimulatedProvider):
    """Sandboxes of the `real` provider, in the places and at the times of the simulated one;
    `counters` are of the real ones."""

    def __init__(
        self,
        clock: VirtualClock,
        workshop: Workshop,
        real: SandboxProvider,
        max_parallel: int,
        start_parallel: int | None = None,
        busy: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(clock, real.why, max_parallel, start_parallel, busy)
        self.workshop, self.real = workshop, Repeatable(real)
        self.kind = real.kind
        self.counters = real.counters
        self._removals: set[Future[None]] = set()

    async def start(self, spec: SandboxSpec) -> Sandbox:
        assert isinstance(spec, ChargedSpec) and spec.plan is not None
        await self._places.acquire()
        async with self._starts:
            sandbox = ChargedSandbox(spec, self)
            try:
                with self.at_work:
                    await self.time.sleep(spec.plan.start_s)
                sandbox.started.result()
            except BaseException:
                await sandbox.stop()
                raise
        return sandbox

    async def judged(self, seconds: float, work: Callable[[], Future[T]]) -> T:
        """A verifier's work, in a place of its own, that is charged so many seconds."""
        await self._places.acquire()
        try:
            job = work()
            with self.at_work:
                await self.time.sleep(seconds)
            return job.result()
        finally:
            self.stopped()

    def stopped(self) -> None:
        self._places.release()

    def removed_by(self, removal: Future[None]) -> None:
        """A sandbox gives its place up; its removal is waited for when all is closed."""
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)
        self.stopped()

    async def close(self) -> None:
        """Wait for every removal, then for the real provider's end, which counts what is left."""
        for removal in list(self._removals):
            removal.exception()
        self.workshop.begin(self.real.close()).result()
