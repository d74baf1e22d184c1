"""Sandboxes on several hosts, each a worker with a provider of its own (sandbox_service).

A sandbox goes to the host with the most room and stays there. Where a host dies, alone or with its
node, its sandboxes end with it: whoever uses one hears of it as infrastructure's failure, never the
agent's. It is started again, on a node that has its room; meanwhile the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
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
from harness.cluster.protocol import Worker, WorkerEnded, WorkerError
from harness.cluster.sandbox_service import value

_TRIES = 3  # starts of a host, one after the other, that have failed
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
        self._make, self._arguments, self._wait_s = make, arguments, wait_s
        self._lives = [HostLife(number, make(number)) for number in range(len(rooms))]
        self._places = [Place(f"host {n}", room) for n, room in enumerate(rooms)]
        self._all = Places(self._places, min(sum(rooms), arguments["max_parallel"]))
        self._holding: set[object] = set()
        self._restarts: dict[int, asyncio.Task[None]] = {}
        self._left_overs: set[asyncio.Task[None]] = set()
        self._opened = asyncio.Condition()
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
            said = await asyncio.gather(*(provider._begin(life) for life in provider._lives))
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
        life.alive = True
        return kind, why

    # -- the protocol ------------------------------------------------------------------------------

    async def start(self, spec: SandboxSpec) -> HostedSandbox:
        place = await self._slot()
        number = self._places.index(place)
        life = self._lives[number]
        starting = asyncio.ensure_future(self._start(life, place, spec))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # what is under way there shall not be left
            self._later(self._abandon(starting))
            raise

    async def _start(self, life: HostLife, place: Place, spec: SandboxSpec) -> HostedSandbox:
        try:
            answer = await self.ask(life, "start", spec, kind="start")
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
                async with asyncio.timeout(self._wait_s), self._opened:
                    await self._opened.wait_for(lambda: self._open() or not self._restarts)
            if self._closed or not self._open():
                raise InfrastructureError("start", "no host of sandboxes is alive")
            with contextlib.suppress(TemporaryError):  # all are closed meanwhile: wait once more
                return await self._all.acquire()

    def _open(self) -> bool:
        return any(place.open for place in self._places)

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
                return await life.worker.call(verb, *args, **kwargs)
            except WorkerEnded as error:
                self._lost(life, error)
                raise InfrastructureError(kind, str(error)) from error
        raise InfrastructureError(kind, f"{life.worker.name} has ended, and its sandboxes with it")

    # -- the loss of a host ------------------------------------------------------------------------

    def _lost(self, life: HostLife, error: WorkerEnded) -> None:
        if not life.alive or self._lives[life.number] is not life:
            return
        life.alive = False
        self.counters.engine_losses += 1
        self.counters.lost += life.created - life.removed
        self._all.set_open(self._places[life.number], False)
        if not self._closed:
            self._restarts[life.number] = asyncio.create_task(self._restart(life, error))

    async def _restart(self, dead: HostLife, error: BaseException) -> None:
        number = dead.number
        _say(f"{error}; {dead.created - dead.removed} sandboxes ended with it; it is started again")
        try:
            await dead.worker.close()
            for _ in range(_TRIES):
                life = HostLife(number, self._make(number))
                try:
                    await self._begin(life)
                except (WorkerError, UsageError) as failed:
                    error = failed
                except BaseException:
                    await life.worker.close()
                    raise
                else:
                    self._lives[number] = life
                    self._all.set_open(self._places[number], True)
                    return
                await life.worker.close()
            _say(f"{dead.worker.name} stays dead: {' '.join(str(error).split())}")
        finally:
            del self._restarts[number]
            async with self._opened:
                self._opened.notify_all()

    async def close(self) -> None:
        """Stop what is left on every host, and add up the hosts' own accounts."""
        self._closed = True
        for restart in list(self._restarts.values()):
            restart.cancel()
        await asyncio.gather(*self._restarts.values(), return_exceptions=True)
        await asyncio.gather(*self._left_overs, return_exceptions=True)
        await asyncio.gather(*(self._shut(life) for life in self._lives))
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


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
