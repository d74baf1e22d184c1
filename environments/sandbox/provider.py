"""What both kinds of provider share: limits, back-off, and an account of every sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod

from environments.protocols import InfrastructureError, SandboxCounters, SandboxSpec
from environments.sandbox import backoff
from environments.sandbox.channel import ChannelClosed, ChannelSandbox
from environments.sandbox.places import Place, Places


class Provider(ABC):
    """A sandbox holds one of the slots in `places` from its start until it is removed. At most
    `start_parallel` start and `exec_parallel` commands run at once (None: no limit of its own)."""

    kind: str

    def __init__(
        self,
        *,
        run_id: str,
        places: Places,
        why: str,
        start_parallel: int | None = None,
        exec_parallel: int | None = None,
    ) -> None:
        self.run_id = run_id
        self.why = why
        self.counters = SandboxCounters()
        self.places = places
        self.start_parallel = start_parallel or places.limit
        self.starts = asyncio.Semaphore(self.start_parallel)
        self._execs = asyncio.Semaphore(exec_parallel) if exec_parallel else None
        self._living: dict[ChannelSandbox, Place] = {}
        self._holding: dict[ChannelSandbox, Place] = {}  # those that still hold a slot
        self._number = 0
        self._closed = False

    @abstractmethod
    def _new(self, spec: SandboxSpec, number: int, place: Place) -> ChannelSandbox:
        """A sandbox object for which nothing exists outside this process yet."""

    @abstractmethod
    async def _launch(self, sandbox: ChannelSandbox) -> None:
        """Bring it into being, up to its server's greeting. Raises TemporaryError where another
        try may succeed."""

    async def start(self, spec: SandboxSpec) -> ChannelSandbox:
        """A fresh sandbox. Where the engine is overloaded or away it is tried again, a bounded
        number of times; raises InfrastructureError."""
        began_s = time.monotonic()
        attempt = 0
        while True:
            try:
                return await self.start_once(spec)
            except backoff.TemporaryError as error:
                attempt += 1
                taken_s = time.monotonic() - began_s
                if attempt == backoff.TRIES or taken_s > backoff.GIVE_UP_S or self._closed:
                    tried = f"{attempt} tries in {taken_s:.0f} s"
                    raise InfrastructureError(error.kind, f"{tried}; the last: {error}") from error
            await asyncio.sleep(backoff.delay_s(attempt - 1))

    async def start_once(self, spec: SandboxSpec) -> ChannelSandbox:
        """One try, as soon as there is a slot."""
        place = await self.places.acquire()
        try:
            await self.starts.acquire()
        except BaseException:
            self.places.release(place)
            raise
        try:
            if self._closed:
                self.places.release(place)
                raise InfrastructureError("start", "the sandbox provider is closed")
            return await self._start_in(place, spec)
        finally:
            self.starts.release()
            self.places.on_change()

    async def _start_in(self, place: Place, spec: SandboxSpec) -> ChannelSandbox:
        self._number += 1
        sandbox = self._new(spec, self._number, place)
        sandbox.on_stopped = self._stopped
        sandbox.on_stop_failed = self._give_slot
        if self._execs is not None:
            sandbox.exec_limit = self._execs
        self._holding[sandbox] = self._living[sandbox] = place
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
        if self._living.pop(sandbox, None) is not None:
            self.counters.removed += 1
        self._give_slot(sandbox)

    def _give_slot(self, sandbox: ChannelSandbox) -> None:
        """A sandbox that cannot be removed (its engine is gone) must not keep others waiting."""
        place = self._holding.pop(sandbox, None)
        if place is not None:
            self.places.release(place)

    async def remove_left(self, place: Place) -> None:
        """Once more for those whose removal failed while their engine was away."""
        left = [s for s, where in self._living.items() if where is place and s not in self._holding]
        await asyncio.gather(*(self._abandon(sandbox) for sandbox in left))

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
