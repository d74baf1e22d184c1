"""Sandboxes prepared ahead: started, checked by a command, unused, and handed out at once.

A pool stands before a provider and keeps up to `warm` sandboxes of each of the last few kinds asked
for (equal specs: agents and verifiers of one task share a kind), refilled in the background. A
sandbox serves one life, whoever made it: none comes back. Unused ones count against the provider's
slots, and give way as soon as somebody waits for a slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Coroutine, Hashable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from environments.protocols import InfrastructureError, SandboxSpec
from environments.sandbox.channel import ChannelSandbox
from environments.sandbox.provider import Provider

_KINDS = 8  # asked for last, that are refilled: a batch of as many tasks with images of their own
_REST_S = 5.0  # after a failed preparation
# Looked at at once before they are handed out: of a batch that asks for all its sandboxes the first
# ones shall be at work while the others are looked at.
_CHECKS = 4
_CHECK_LIMIT_S = 10.0
# While a batch takes its sandboxes none is made: that would take the machine from those at work.
_CALM_S = 0.25  # after the last was asked for,
_CALM_LIMIT_S = 1.0  # or after the first of a burst, however many come after it


def kind_of(spec: SandboxSpec) -> Hashable:
    """Equal for specs whose sandboxes are interchangeable."""
    values = (getattr(spec, part.name) for part in fields(spec))
    return tuple(_frozen(value) for value in values)


def _frozen(value: object) -> Hashable:
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    return tuple(value) if isinstance(value, list) else value  # type: ignore[return-value]


class _NoRoom(InfrastructureError):
    """A preparation that found its slot taken: not a failure."""


@dataclass(frozen=True)
class _Ready:
    sandbox: ChannelSandbox
    until_s: float


@dataclass
class _Kind:
    spec: SandboxSpec
    asked_s: float = 0.0
    ready: deque[_Ready] = field(default_factory=deque)  # the oldest first
    preparing: deque[asyncio.Task[ChannelSandbox]] = field(default_factory=deque)  # with a slot
    coming: int = 0  # about to be prepared

    @property
    def made(self) -> int:
        return len(self.ready) + len(self.preparing) + self.coming


class WarmPool:
    """A SandboxProvider. `misses` counts the starts that no sandbox made ahead has served. Closing
    it closes the provider."""

    def __init__(self, provider: Provider, *, warm: int, time_to_live_s: float) -> None:
        self.provider = provider
        self.kind = provider.kind
        self.why = f"{provider.why}; up to {warm} warm"
        self.counters = provider.counters
        self.misses = 0
        self._warm = warm
        self._time_to_live_s = time_to_live_s
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()  # the last asked for at the end
        self._preparing: set[asyncio.Task[ChannelSandbox]] = set()
        self._removing: set[asyncio.Task[None]] = set()
        self._coming = 0  # preparations of any kind whose first step is still to come
        self._rests_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._checks = asyncio.Semaphore(_CHECKS)
        self._asked_s = self._burst_s = 0.0  # the last start, and the first of its burst
        self._closed = False
        # Half of the starts at most are made ahead: the other half is for those who wait.
        self._ahead = max(1, provider.start_parallel // 2)
        provider.places.on_change = self._changed

    @property
    def idle(self) -> int:
        """Warm sandboxes that wait for use."""
        return sum(len(kind.ready) for kind in self._kinds.values())

    # --- handing out ----------------------------------------------------------------------------

    def expect(self, spec: SandboxSpec) -> None:
        """Begin to prepare sandboxes of this kind."""
        self._asked(spec)
        self._changed()

    def _asked(self, spec: SandboxSpec) -> _Kind:
        name = kind_of(spec)
        kind = self._kinds.setdefault(name, _Kind(spec))
        kind.asked_s = time.monotonic()
        self._kinds.move_to_end(name)
        return kind

    async def start(self, spec: SandboxSpec) -> ChannelSandbox:
        """A sandbox made ahead where one is ready or in preparation, else a new one. Raises
        InfrastructureError as the provider does."""
        kind = self._asked(spec)
        now = time.monotonic()
        if now > self._asked_s + _CALM_S:
            self._burst_s = now
        self._asked_s = now
        while not self._closed:
            if kind.ready:
                sandbox = kind.ready.popleft().sandbox
                self._changed()
                if await self._checked(sandbox, self._answers(sandbox)):
                    self.counters.warm += 1
                    return sandbox
            elif kind.preparing:
                with contextlib.suppress(InfrastructureError):  # then a start of its own says why
                    sandbox = await self._adopt(kind)
                    self.counters.warm += 1
                    return sandbox
            else:
                self.misses += 1
                return await self.provider.start(spec)
        raise InfrastructureError("start", "the sandbox pool is closed")

    async def _answers(self, sandbox: ChannelSandbox) -> bool:
        async with self._checks:
            try:
                async with asyncio.timeout(_CHECK_LIMIT_S):
                    return await sandbox.answers()
            except TimeoutError:
                return False

    async def _checked(self, sandbox: ChannelSandbox, check: Coroutine[Any, Any, bool]) -> bool:
        """The check's answer; one that fails it is removed."""
        try:
            good = await check
        except BaseException:
            self._discard(sandbox)
            raise
        if not good:
            self._discard(sandbox)
        return good

    async def _adopt(self, kind: _Kind) -> ChannelSandbox:
        """The first in preparation, for this caller alone."""
        task = kind.preparing.popleft()
        self._changed()
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by close, not the caller
                raise InfrastructureError("start", "the sandbox pool is closed") from None
            if not task.done():
                kind.preparing.appendleft(task)
            elif task.exception() is None:
                self._keep(kind, task.result())
            raise

    # --- making ahead ---------------------------------------------------------------------------

    def _changed(self) -> None:
        """Slots, starts or wishes have changed: make room for those who wait, else refill."""
        if self._closed:
            return
        now = time.monotonic()
        self._expire(now)
        waiting = self.provider.places.waiting
        if waiting:
            for _ in range(waiting - len(self._removing)):
                if not self._evict():
                    return
            return
        if now < max(self._rests_until_s, self._calm_at_s):
            return
        for kind in list(reversed(self._kinds.values()))[:_KINDS]:
            if kind.asked_s + self._time_to_live_s <= now:
                return
            while kind.made < self._warm and self._may_start():
                kind.coming += 1
                self._coming += 1
                task = asyncio.create_task(self._prepare(kind))
                self._preparing.add(task)
                task.add_done_callback(partial(self._prepared, kind))

    @property
    def _calm_at_s(self) -> float:
        """When the burst of starts in progress counts as over."""
        return min(self._asked_s + _CALM_S, self._burst_s + _CALM_LIMIT_S)

    def _may_start(self) -> bool:
        free = self.provider.places.free - self._coming
        return free > 0 and len(self._preparing) < self._ahead and not self.provider.starts.locked()

    async def _prepare(self, kind: _Kind) -> ChannelSandbox:
        kind.coming -= 1
        self._coming -= 1
        if not self.provider.places.free:  # somebody has come in between: never wait in their queue
            raise _NoRoom("start", "no slot is free")
        task = asyncio.current_task()
        assert task is not None
        kind.preparing.append(task)
        sandbox = await self.provider.start_once(kind.spec)
        if not await self._checked(sandbox, sandbox.runs_commands()):
            message = f"{sandbox.sandbox_id} does not run a command"
            raise InfrastructureError("start", message)
        return sandbox

    def _prepared(self, kind: _Kind, task: asyncio.Task[ChannelSandbox]) -> None:
        """Ready, unless somebody has adopted it."""
        self._preparing.discard(task)
        unclaimed = task in kind.preparing
        if unclaimed:
            kind.preparing.remove(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, _NoRoom):
            self._rests_until_s = time.monotonic() + _REST_S
        elif error is None and unclaimed:
            self._keep(kind, task.result())
        self._changed()

    def _keep(self, kind: _Kind, sandbox: ChannelSandbox) -> None:
        kind.ready.append(_Ready(sandbox, time.monotonic() + self._time_to_live_s))

    # --- giving up ------------------------------------------------------------------------------

    def _evict(self) -> bool:
        """Remove the oldest of the kind that was not asked for the longest; False: there is none"""
        for kind in self._kinds.values():
            if kind.ready:
                self._discard(kind.ready.popleft().sandbox)
                return True
        return False

    def _expire(self, now: float) -> None:
        """Remove what is too old, forget kinds that nobody asks for, and come back for the rest."""
        for name, kind in list(self._kinds.items()):
            while kind.ready and kind.ready[0].until_s <= now:
                self._discard(kind.ready.popleft().sandbox)
            idle = not kind.ready and not kind.preparing
            if idle and kind.asked_s + self._time_to_live_s <= now:
                del self._kinds[name]
        times = [kind.ready[0].until_s for kind in self._kinds.values() if kind.ready]
        times += [wait for wait in (self._rests_until_s, self._calm_at_s) if wait > now]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if times:
            wait_s = max(0.0, min(times) - now) + 0.001
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._changed)

    def _discard(self, sandbox: ChannelSandbox) -> None:
        removal = asyncio.create_task(self._remove(sandbox))
        self._removing.add(removal)
        removal.add_done_callback(self._removing.discard)

    async def _remove(self, sandbox: ChannelSandbox) -> None:
        with contextlib.suppress(InfrastructureError):  # it stays in the account; close tries again
            await sandbox.stop()

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._preparing:
            task.cancel()
        await asyncio.gather(*self._preparing, *self._removing, return_exceptions=True)
        await self.provider.close()
