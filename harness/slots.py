"""Numbers for what is alive at the same time: the tracks of sandboxes in the timeline."""

from __future__ import annotations

import heapq


class Slots:
    """Names for sandboxes in the timeline: the lowest free number, so that tracks stay few."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    @property
    def names(self) -> int:
        """How many there are, taken or free."""
        return self._next

    @names.setter
    def names(self, count: int) -> None:
        """All of them free."""
        self._free, self._next = list(range(count)), count

    def give(self, slot: int) -> None:
        heapq.heappush(self._free, slot)
