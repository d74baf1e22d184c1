"""A batch of rollouts under way: groups, and their events in the order of happening."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from harness.protocols import (
    Clock,
    Event,
    Group,
    GroupClosed,
    Sink,
    Task,
    TurnFinished,
    TurnGenerated,
)

Begin = Callable[[int, Task, int, Sink], Group]
"""(number, task, seed, sink) -> the group, whose rollouts have been started."""


class Events:
    """A queue of events, and what has ended it early. A schedule waits only here, so this is where
    a broken rollout, or the end of a budget, reaches it."""

    def __init__(self, clock: Clock, turns: bool) -> None:
        """`turns`: whether events of turns are handed over."""
        self._clock = clock
        self._queue = clock.queue()
        self._failure: BaseException | None = None
        self._silent: tuple[type, ...] = () if turns else (TurnGenerated, TurnFinished)

    def put(self, event: Event | None) -> None:
        """None is the end."""
        if event.__class__ not in self._silent:
            self._queue.put_nowait(event)

    def fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._queue.put_nowait(None)


class LiveBatch(Events):
    """The Batch protocol over a queue; after a failure every later `next` and `ready` raises.
    `began_s` is when its first rollout began, `started_s` when its update did: the same for a batch
    of its own, not for groups out of a flow."""

    def __init__(
        self,
        index: int,
        version: int,
        groups: Iterable[Group],
        clock: Clock,
        record: Callable[[Event], None] = lambda event: None,
        turns: bool = True,
    ) -> None:
        super().__init__(clock, turns)
        self.index = index
        self.version = version
        self.groups = list(groups)
        self.began_s = self.started_s = self.last_event_s = clock.now()
        self._record = record
        self._closed = 0
        self._ended = False

    def emit(self, event: Event) -> None:
        """Sequence an event, which `record` sees first; the last group's close ends the batch."""
        self._record(event)
        self.last_event_s = self._clock.now()
        self.put(event)
        if isinstance(event, GroupClosed):
            self._closed += 1
            if self._closed == len(self.groups):
                self.put(None)

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


def start(
    begin: Begin,
    index: int,
    version: int,
    tasks: Sequence[Task],
    seed: int,
    clock: Clock,
    record: Callable[[Event], None] = lambda event: None,
    turns: bool = True,
) -> LiveBatch:
    """Begin a batch: one group per task. `record` sees every event before the schedule does, which
    is handed those of `turns` if they matter."""
    batch = LiveBatch(index, version, [], clock, record, turns)
    for number, task in enumerate(tasks, index * len(tasks)):
        group = begin(number, task, seed, batch)
        group.version = version
        batch.groups.append(group)
    return batch
