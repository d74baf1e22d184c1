"""Accounting that both kinds of provider share: a limit on parallel sandboxes, and who is left."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod

from environments.protocols import InfrastructureError, SandboxCounters, SandboxSpec
from environments.sandbox.channel import ChannelClosed, ChannelSandbox


class Provider(ABC):
    """A sandbox holds one of `max_parallel` slots from its start until it is removed."""

    kind: str

    def __init__(self, *, run_id: str, max_parallel: int, why: str) -> None:
        self.run_id = run_id
        self.why = why
        self.counters = SandboxCounters()
        self._slots = asyncio.Semaphore(max_parallel)
        self._living: set[ChannelSandbox] = set()
        self._holding: set[ChannelSandbox] = set()  # those that still hold a slot
        self._number = 0
        self._closed = False

    @abstractmethod
    def _new(self, spec: SandboxSpec, number: int) -> ChannelSandbox:
        """A sandbox object for which nothing exists outside this process yet."""

    @abstractmethod
    async def _launch(self, sandbox: ChannelSandbox) -> None:
        """Bring it into being, up to its server's greeting."""

    async def start(self, spec: SandboxSpec) -> ChannelSandbox:
        await self._slots.acquire()
        if self._closed:
            self._slots.release()
            raise InfrastructureError("start", "the sandbox provider is closed")
        self._number += 1
        sandbox = self._new(spec, self._number)
        sandbox.on_stopped = self._stopped
        sandbox.on_stop_failed = self._give_slot
        self._holding.add(sandbox)
        self._living.add(sandbox)
        self.counters.created += 1
        try:
            await self._launch(sandbox)
        except ChannelClosed as error:
            await self._abandon(sandbox)
            raise InfrastructureError("start", f"{sandbox.sandbox_id}: {error}") from error
        except BaseException:  # cancellation too: a start that was given up leaves nothing behind
            await self._abandon(sandbox)
            raise
        return sandbox

    async def _abandon(self, sandbox: ChannelSandbox) -> None:
        """What cannot be removed stays counted as living; close tries again."""
        with contextlib.suppress(InfrastructureError):
            await sandbox.stop()

    def _stopped(self, sandbox: ChannelSandbox) -> None:
        if sandbox in self._living:
            self._living.discard(sandbox)
            self.counters.removed += 1
        self._give_slot(sandbox)

    def _give_slot(self, sandbox: ChannelSandbox) -> None:
        """A sandbox that cannot be removed (its engine is gone) must not keep others waiting."""
        if sandbox in self._holding:
            self._holding.discard(sandbox)
            self._slots.release()

    async def close(self) -> None:
        self._closed = True
        ends = (sandbox.stop() for sandbox in list(self._living))
        outcomes = await asyncio.gather(*ends, return_exceptions=True)
        self.counters.leaked = len(self._living)
        await self._close()
        unexpected = [
            outcome
            for outcome in outcomes
            if isinstance(outcome, BaseException) and not isinstance(outcome, InfrastructureError)
        ]
        if unexpected:
            raise unexpected[0]

    @abstractmethod
    async def _close(self) -> None:
        """Give back what the provider itself holds."""
