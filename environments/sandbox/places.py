"""Slots for sandboxes: a limit for all, one for each place they can be in; first come first served.

A place is a machine that runs sandboxes (a container engine, or this machine). One that does not
answer is closed: it takes nothing new, what is in it keeps its slots until it has been removed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from environments.sandbox.backoff import TemporaryError


class Place:
    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.used = 0
        self.open = True

    @property
    def free(self) -> int:
        return self.limit - self.used if self.open else 0


class Places:
    def __init__(self, places: Sequence[Place], limit: int) -> None:
        self.all = list(places)
        self.limit = limit
        self.on_change: Callable[[], None] = lambda: None
        self._waiting: deque[asyncio.Future[Place]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return len(self._waiting)

    @property
    def free(self) -> int:
        """How many could have a slot at once; none where others wait for one."""
        if self._waiting:
            return 0
        within = self.limit - sum(place.used for place in self.all)
        return min(within, sum(max(0, place.free) for place in self.all))

    def _best(self) -> Place | None:
        """The open place with the most free slots, the emptier one of two."""
        if sum(place.used for place in self.all) >= self.limit:
            return None
        best = max(self.all, key=lambda place: (place.free, -place.used))
        return best if best.free > 0 else None

    async def acquire(self) -> Place:
        """Wait for a slot. Raises TemporaryError where every place is closed."""
        if not any(place.open for place in self.all):
            raise self._none_open()
        place = None if self._waiting else self._best()
        if place is not None:
            place.used += 1
            return place
        turn: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self.on_change()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release(turn.result())  # a slot that came together with the cancellation
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def release(self, place: Place) -> None:
        place.used -= 1
        self._serve()

    def set_open(self, place: Place, is_open: bool) -> None:
        place.open = is_open
        self._serve()

    def _serve(self) -> None:
        while self._waiting and (place := self._best()) is not None:
            turn = self._waiting.popleft()
            if not turn.done():
                place.used += 1
                turn.set_result(place)
        if not any(place.open for place in self.all):
            while self._waiting:
                turn = self._waiting.popleft()
                if not turn.done():
                    turn.set_exception(self._none_open())
        self.on_change()

    def _none_open(self) -> TemporaryError:
        names = ", ".join(place.name for place in self.all)
        return TemporaryError("start", f"no engine answers ({names})")
