"""A batch of rollouts under way: groups, and their events in the order of happening."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.protocols import Clock, Event, Group, GroupClosed


class LiveBatch:
    """The Batch protocol over a queue. `fail` makes every later `next` and `ready` raise: a
    schedule waits only here, so this is where a broken rollout, or the end of a time budget,
    reaches it."""

    def __init__(
        self,
        index: int,
        version: int,
        groups: Sequence[Group],
        clock: Clock,
        record: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self.index = index
        self.version = version
        self.groups = groups
        self.started_s = clock.now()
        self.last_event_s = self.started_s
        self._clock = clock
        self._record = record
        self._queue = clock.queue()
        self._open = len(groups)
        self._failure: BaseException | None = None
        self._ended = False

    def emit(self, event: Event) -> None:
        """Sequence an event, which `record` sees first; the last group's close ends the batch."""
        self._record(event)
        self.last_event_s = self._clock.now()
        self._queue.put_nowait(event)
        if isinstance(event, GroupClosed):
            self._open -= 1
            if self._open == 0:
                self._queue.put_nowait(None)

    def fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._queue.put_nowait(None)

    async def next(self) -> Event | None:
        if self._failure is None and not self._ended:
            event = await self._queue.get()
            if self._failure is None:
                self._ended = event is None
                return event
        if self._failure is not None:
            raise self._failure
        return None

    def ready(self) -> list[Event]:
        if self._failure is not None:
            raise self._failure
        events: list[Event] = []
        while not self._ended and not self._queue.empty():
            event = self._queue.get_nowait()
            if event is None:
                # Left for `next`, which is what tells the schedule that the batch has ended.
                self._queue.put_nowait(None)
                break
            events.append(event)
        return events
