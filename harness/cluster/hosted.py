"""Sandboxes on several hosts, each a worker with a provider of its own (sandbox_service).

A sandbox goes to the host with the most room and stays there. Where a host dies, alone or with its
node, its sandboxes end with it: whoever uses one hears of it as infrastructure's failure, never the
agent's. It is started again (harness.cluster.lives), on a node that has its room; meanwhile the
others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from environments.protocols import (
    InfrastructureError,
    SandboxCounters,
    SandboxSpec,
    UsageError,
)
from environments.sandbox.backoff import TemporaryError
from environments.sandbox.cgroups import find_groups
from environments.sandbox.ownership import reap_folders
from environments.sandbox.places import Place, Places
from harness.cluster.hosted_sandbox import HostedSandbox, HostLife
from harness.cluster.lives import Lives
from harness.cluster.protocol import Worker, WorkerEnded
from harness.cluster.sandbox_service import value

_SHUT_S = 60.0


class HostedSandboxes:
    """A SandboxProvider. `counters` are exact once it is closed."""

    def __init__(
        self,
        make: Callable[[int], Worker],
        rooms: Sequence[int],
        arguments: Mapping[str, Any],
        wait_s: float,
    ) -> None:
        """`make(number)` is a host for `rooms[number]` sandboxes, not started yet; a start waits
        `wait_s` at most for one that is alive."""
        self._arguments, self._wait_s = arguments, wait_s
        self._lives = Lives(
            "sandboxes", len(rooms),
            make=lambda number: HostLife(number, make(number)),
            begin=self._begin, end=self._shut,
        )  # fmt: skip
        self._places = [Place(f"host {n}", room) for n, room in enumerate(rooms)]
        self._all = Places(self._places, min(sum(rooms), arguments["max_parallel"]))
        self._holding: set[object] = set()
        self._left_overs: set[asyncio.Task[None]] = set()
        self._closed = False
        self.kind, self.why = "", ""
        self.counters = SandboxCounters()

    @classmethod
    async def open(
        cls,
        make: Callable[[int], Worker],
        rooms: Sequence[int],
        arguments: Mapping[str, Any],
        wait_s: float,
    ) -> HostedSandboxes:
        """Raises UsageError where a host can run none, or another kind than the others."""
        provider = cls(make, rooms, arguments, wait_s)
        try:
            said = await provider._lives.start()
        except BaseException:
            await provider.close()
            raise
        kinds = sorted({kind for kind, _ in said})
        if len(kinds) > 1:
            await provider.close()
            raise UsageError(
                f"sandbox={arguments['kind']}: the cluster's nodes would run "
                f"{' and '.join(kinds)}; take one of them for all"
            )
        provider.kind = kinds[0]
        provider.why = f"{said[0][1]}; on {len(rooms)} hosts of {list(rooms)}"
        return provider

    async def _begin(self, life: HostLife) -> tuple[str, str]:
        """Start a host and its provider, for its share of what is expected."""
        await life.worker.start()
        room, whole = self._places[life.number].limit, self._all.limit
        given = self._arguments
        expected = -(-given["expect_parallel"] * room // whole)
        options = given["options"]
        if options.warm is not None:
            options = replace(options, warm=-(-options.warm * room // whole))
        kind, why = await life.worker.call(
            "open",
            {
                **given,
                "run_id": f"{given['run_id']}-{life.number}",
                "max_parallel": room,
                "expect_parallel": expected,
                "options": options,
            },
        )
        self._all.set_open(self._places[life.number], True)
        return kind, why

    # -- the protocol ------------------------------------------------------------------------------

    async def start(self, spec: SandboxSpec) -> HostedSandbox:
        place = await self._slot()
        life = self._lives.all[self._places.index(place)]
        starting = asyncio.ensure_future(self._start(life, place, spec))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # what is under way there shall not be left
            self._later(self._abandon(starting))
            raise

    async def _start(self, life: HostLife, place: Place, spec: SandboxSpec) -> HostedSandbox:
        try:
            answer = await self.ask(life, "start_sandbox", spec, kind="start")
            sandbox_id, from_image = value(answer)
        except BaseException:
            self._all.release(place)
            raise
        life.created += 1
        self.counters.created += 1
        sandbox = HostedSandbox(sandbox_id, from_image, life, place, self)
        self._holding.add(sandbox)
        return sandbox

    async def _abandon(self, starting: asyncio.Future[HostedSandbox]) -> None:
        with contextlib.suppress(InfrastructureError):
            sandbox = await starting
            await sandbox.stop()

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._left_overs.add(task)
        task.add_done_callback(self._left_overs.discard)

    async def _slot(self) -> Place:
        """On a host that is alive, as soon as there is one with room."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s):
                    await self._lives.settle()
            if self._closed or not self._lives.alive:
                raise InfrastructureError("start", "no host of sandboxes is alive")
            with contextlib.suppress(TemporaryError):  # all are closed meanwhile: wait once more
                return await self._all.acquire()

    def give(self, place: Place, sandbox: object) -> None:
        """A sandbox's slot, once."""
        if sandbox in self._holding:
            self._holding.discard(sandbox)
            self._all.release(place)

    async def ask(
        self, life: HostLife, verb: str, *args: Any, kind: Any = "exec_transport", **kwargs: Any
    ) -> Any:
        """Raises InfrastructureError of this kind where the host is gone."""
        if life.alive:
            try:
                answer = await life.worker.call(verb, *args, **kwargs)
            except WorkerEnded as error:
                self._lost(life, error)
                raise InfrastructureError(kind, str(error)) from error
            self._lives.answered(life)
            return answer
        raise InfrastructureError(kind, f"{life.worker.name} has ended, and its sandboxes with it")

    # -- the loss of a host ------------------------------------------------------------------------

    def _lost(self, life: HostLife, error: WorkerEnded) -> None:
        lost = life.created - life.removed
        if self._lives.lost(life, error, f"{lost} sandboxes ended with it"):
            self.counters.engine_losses += 1
            self.counters.lost += lost
            self._all.set_open(self._places[life.number], False)

    async def close(self) -> None:
        """Stop what is left on every host, and add up the hosts' own accounts."""
        self._closed = True
        await asyncio.gather(*self._left_overs, return_exceptions=True)
        await self._lives.close()
        if self.counters.engine_losses:
            await asyncio.to_thread(_reap)

    async def _shut(self, life: HostLife) -> None:
        if not life.alive:
            await life.worker.close()
            return
        with contextlib.suppress(WorkerEnded, InfrastructureError, TimeoutError):
            async with asyncio.timeout(_SHUT_S):
                account = await self.ask(life, "shut")
                self._add(life, account)
        life.alive = False
        await life.worker.close()

    def _add(self, life: HostLife, account: Mapping[str, int]) -> None:
        """What this end has counted of the host is replaced by what the host has."""
        self.counters.created -= life.created
        self.counters.removed -= life.removed
        for name, count in account.items():
            setattr(self.counters, name, getattr(self.counters, name) + count)


def _reap() -> None:
    """What hosts that were killed have left on this machine; elsewhere the next start does it."""
    groups, _ = find_groups()
    if groups is not None:
        groups.reap()
    reap_folders()
