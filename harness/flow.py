"""Groups without the boundaries of batches: rollouts that go on while the learner works.

The admission bound of asynchronous training (math.md section 7) is a number of groups that may have
been begun; which number, and which of the closed groups are trained on when, is the schedule's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.batch import Events, LiveBatch
from harness.budget import Budget, BudgetEnded
from harness.protocols import (
    Clock,
    Event,
    Group,
    GroupClosed,
    Trajectory,
    TrajectoryFinished,
    TrajectoryLost,
)
from harness.recorder import Recorder


class _Run(Protocol):
    version: int
    """The newest published weights."""
    updated_s: float
    """When the last update ended, or training began."""
    budget: Budget


@dataclass(frozen=True)
class Resumed:
    """A flow that goes on: `begun` groups, of which `again` were not trained on yet and begin again
    before any other, with the versions that they began at: closed ones first, in the order of their
    closing. `batches` were made, `replaced` groups discarded."""

    begun: int
    replaced: int
    batches: int
    again: Mapping[int, int]


class LiveFlow(Events):
    """The Flow protocol over a queue, and the sink of its groups.

    `begin(number, sink)` starts the next group, of `group_size` trajectories. No more than `room`
    trajectories roll out at once (verification not counted), but for a single group that needs
    more; `most` is how many groups the budget could use at all.

    In a run that goes on groups of later versions may be there at once. There a group is closed for
    the schedule once the learner has the newest version that made its tokens: else it would be
    trained on before the groups that this version comes from."""

    def __init__(
        self,
        begin: Callable[[int, LiveFlow], Group],
        run: _Run,
        clock: Clock,
        recorder: Recorder,
        *,
        group_size: int,
        room: int,
        most: int | None,
        turns: bool = True,
        resumed: Resumed | None = None,
    ) -> None:
        super().__init__(clock, turns)
        self._begin = begin
        self._run = run
        self._recorder = recorder
        self._group_size = group_size
        self._room = room
        self._most = most
        self._allowed = 0
        self._holds = resumed is not None
        resumed = resumed or Resumed(0, 0, 0, {})
        self._again = dict(resumed.again)
        self._begun = resumed.begun - len(self._again)
        self._replaced, self._batches = resumed.replaced, resumed.batches
        self._open: dict[int, Group] = {}
        self._early: dict[int, GroupClosed] = {}  # of `_open`: for a later version
        self._rolling: set[tuple[int, int]] = set()
        self._times: dict[int, tuple[float, float]] = {}  # began, closed
        self._versions: dict[int, int] = dict(self._again)

    @property
    def open(self) -> list[Group]:
        """Begun and not closed, in order of their beginning."""
        return list(self._open.values())

    def allow(self, groups: int) -> None:
        """How many groups may have been begun, all told."""
        self._allowed = groups if self._most is None else min(groups, self._most)
        for event in list(self._early.values()):
            if _newest(event.group) <= self._run.version:
                self._close(event)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and not self._run.budget.exhausted and self._fits():
            number = next(iter(self._again), self._begun)
            version = self._again.pop(number, self._run.version)
            self._begun += 1
            self._rolling |= {(number, i) for i in range(self._group_size)}
            self._times[number] = (self._clock.now(), 0.0)
            self._versions[number] = version
            self._open[number] = group = self._begin(number, self)
            group.version = version

    def state(self) -> Resumed:
        """What another flow goes on with."""
        closed = sorted((end_s, number) for number, (_, end_s) in self._times.items() if end_s)
        numbers = dict.fromkeys([*(number for _, number in closed), *self._versions])
        return Resumed(
            self._begun + len(self._again),
            self._replaced,
            self._batches,
            {number: self._versions[number] for number in numbers},
        )

    @property
    def _waiting(self) -> int:
        """Groups that may begin and have not."""
        return self._allowed + self._replaced - self._begun

    def _fits(self) -> bool:
        return not self._rolling or len(self._rolling) + self._group_size <= self._room

    def emit(self, event: Event) -> None:
        self._recorder.hear(event)
        if self._failure is not None:
            return  # the run is over, and this event's group with it
        if isinstance(event, GroupClosed):
            if self._holds and _newest(event.group) > self._run.version:
                self._early[event.group.group] = event
                self._queue.put_nowait(None)  # `next` looks again
            else:
                self._close(event)
            return
        if isinstance(event, TrajectoryFinished):
            self._rolling.discard(_place(event.trajectory))
        elif isinstance(event, TrajectoryLost):
            if event.final:
                self._rolling.discard(_place(event.trajectory))
            else:  # it starts again, perhaps after its tokens had been fixed
                self._rolling.add(_place(event.trajectory))
        self.put(event)
        self._fill()

    def _close(self, event: GroupClosed) -> None:
        number = event.group.group
        self._open.pop(number)
        self._early.pop(number, None)
        self._times[number] = (self._times[number][0], self._clock.now())
        self.put(event)
        self._fill()

    def fail(self, error: BaseException) -> None:
        if isinstance(error, BudgetEnded):
            for event in list(self._early.values()):  # closed before, and paid for
                self._close(event)
            self._open.clear()  # it is discarded
        super().fail(error)

    @property
    def _paid(self) -> bool:
        """Whether what had happened is still handed over: groups that closed before a budget of
        trajectories or tokens was spent are paid for, and an update of them spends nothing."""
        return isinstance(self._failure, BudgetEnded) and self._run.budget.remaining_s is None

    async def next(self) -> Event | None:
        """The next event; None once all that was allowed has ended and was handed over. Raises
        BudgetEnded, also where what was allowed could not begin any more."""
        while True:
            if self._failure is not None and (self._queue.empty() or not self._paid):
                raise self._failure
            if self._queue.empty() and self._early and len(self._early) == len(self._open):
                # Nothing else is under way that could bring the version: what is least ahead.
                self._close(min(self._early.values(), key=lambda event: _newest(event.group)))
            if self._queue.empty() and not self._open:
                if self._waiting:
                    raise self._run.budget.ended()
                return None
            event = await self._queue.get()
            if event is not None and (self._failure is None or self._paid):
                return event

    def ready(self) -> list[Event]:
        """Every event already sequenced, without waiting."""
        if self._failure is not None and not self._paid:
            raise self._failure
        events = []
        while not self._queue.empty():
            event = self._queue.get_nowait()
            if event is not None:
                events.append(event)
        return events

    def discard(self, group: Group, why: str) -> None:
        self._times.pop(group.group)
        self._versions.pop(group.group)
        self._replaced += 1
        self._recorder.discard(group, why)
        self._fill()

    def batch(self, groups: Sequence[Group]) -> LiveBatch:
        """Closed groups as the next update's batch; it starts where the last update ended."""
        ordered = sorted(groups, key=lambda group: group.group)
        times = [self._times.pop(group.group) for group in ordered]
        for group in ordered:
            self._versions.pop(group.group)
        batch = LiveBatch(self._batches, self._run.version, ordered, self._clock)
        self._batches += 1
        batch.began_s = min(began for began, _ in times)
        batch.last_event_s = max(closed for _, closed in times)
        batch.started_s = self._run.updated_s
        return batch


def _newest(group: Group) -> int:
    """The newest version that made any of its tokens; 0 where there are none."""
    spans = (span.version for t in group.trajectories for span in t.version_spans)
    return max(spans, default=0)


def _place(trajectory: Trajectory) -> tuple[int, int]:
    return trajectory.group, trajectory.index
