"""A schedule's own processor time: its code on planned events, with parts that do nothing.

Batches, flow and learner are the ones that a schedule is given, as bare as they can be: rollouts
are a list of moments, a verb of the learner moves the time on. The objective and the packing are
the real ones. Nothing suspends, so that a whole run is one call.
"""

from __future__ import annotations

import copy
import heapq
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from harness.cluster.worker import load
from harness.composition import compose
from harness.config import Config, ObjectiveConfig
from harness.objectives.grpo import Grpo
from harness.objectives.passes import ByObjective
from harness.protocols import (
    Event,
    Group,
    GroupClosed,
    RewardArrived,
    StepStats,
    Trajectory,
    TrajectoryFinished,
    VersionSpan,
)

SIZE, GROUPS = 8, 8  # trajectories of a group, groups of a batch
VERB_S = 0.4  # of the learner; a batch takes 60 s to arrive
CHUNK_TOKENS = 4096


class _Lives:
    """One update's trajectories: when each ends and is judged, and with what reward."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.planned: list[list[tuple[float, float, float, Trajectory]]] = []
        for group in range(GROUPS):
            rows = []
            for index in range(SIZE):
                finished_s = draw.uniform(5, 50)
                length = draw.randint(100, 600)
                mask = [0, *[1] * (length - 1)]
                t = Trajectory(
                    "", f"t{group}", "easy", group, index, 0, tokens_T=[7] * length,
                    action_mask_T=mask, end="submit",
                )  # fmt: skip
                reward = float(draw.random() < 0.4)
                rows.append((finished_s, finished_s + draw.uniform(1, 10), reward, t))
            self.planned.append(rows)


class _Events:
    """What has been planned, handed over as its moments come."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._coming: list[tuple[float, int, Event, float]] = []
        self._number = 0

    def begin(self, number: int, version: int, lives: _Lives) -> Group:
        """A group whose trajectories start now."""
        group = Group(number, f"t{number % GROUPS}", "easy", version=version)
        last_s = 0.0
        for finished_s, judged_s, reward, planned in lives.planned[number % GROUPS]:
            t = copy.copy(planned)
            t.trajectory_id, t.group = f"{number}-{t.index}", number
            t.version_spans = [VersionSpan(version, 1, len(t.tokens_T))]
            group.trajectories.append(t)
            self._plan(finished_s, TrajectoryFinished(t))
            self._plan(judged_s, RewardArrived(t), reward)
            last_s = max(last_s, judged_s)
        self._plan(last_s, GroupClosed(group))
        return group

    def _plan(self, in_s: float, event: Event, reward: float = 0.0) -> None:
        self._number += 1
        heapq.heappush(self._coming, (self.now_s + in_s, self._number, event, reward))

    def take(self) -> Event | None:
        """The next event, for which the time moves on; None where there is none."""
        if not self._coming:
            return None
        at_s, _, event, reward = heapq.heappop(self._coming)
        self.now_s = max(self.now_s, at_s)
        if isinstance(event, RewardArrived):
            event.trajectory.reward = reward
        return event

    def due(self) -> list[Event]:
        """All that has happened."""
        found: list[Event] = []
        while self._coming and self._coming[0][0] <= self.now_s:
            found.append(cast(Event, self.take()))
        return found


class _Learner:
    """Every verb takes its time, and does nothing."""

    def __init__(self, events: _Events) -> None:
        self._events = events
        self.verbs = 0

    async def _verb(self, *unused: object) -> None:
        self._events.now_s += VERB_S
        self.verbs += 1

    accumulate = capture = commit = discard = fold = drop = extend = abandon = _verb


class _Batch:
    """Begun together, or closed groups of a flow."""

    def __init__(self, index: int, version: int, groups: list[Group], events: _Events) -> None:
        self.index, self.version, self.groups = index, version, groups
        self._events = events

    async def next(self) -> Event | None:
        return self._events.take()

    def ready(self) -> list[Event]:
        return self._events.due()


class Rehearsal(ByObjective):
    """The Run and the Flow of `updates` updates; for one play."""

    ranks = 1
    groups_per_batch = GROUPS
    _chunk_tokens = CHUNK_TOKENS

    def __init__(self, lives: _Lives, updates: int) -> None:
        self._lives, self._updates = lives, updates
        self._events = _Events()
        self.learner = _Learner(self._events)
        self._objective = Grpo(ObjectiveConfig(), SIZE)
        self.version = 0
        self._begun = 0
        self._open: dict[int, Group] = {}

    def _begin(self) -> Group:
        group = self._events.begin(self._begun, self.version, self._lives)
        self._begun += 1
        return group

    # -- Run

    async def batches(self) -> AsyncIterator[_Batch]:
        for index in range(self._updates):
            groups = [self._begin() for _ in range(GROUPS)]
            yield _Batch(index, self.version, groups, self._events)

    async def step(self, batch: _Batch) -> StepStats:
        return StepStats(self.version + 1, 1.0, False, 1e-3, 0, 0)

    async def finish_update(self, batch: _Batch, stats: StepStats) -> None:
        self.version = stats.version

    # -- Flow

    def flow(self) -> Rehearsal:
        return self

    @property
    def open(self) -> list[Group]:
        return list(self._open.values())

    def allow(self, groups: int) -> None:
        while self._begun < min(groups, self._updates * GROUPS):
            group = self._begin()
            self._open[group.group] = group

    async def next(self) -> Event | None:
        event = self._events.take()
        return None if event is None else self._closed([event])[0]

    def ready(self) -> list[Event]:
        return self._closed(self._events.due())

    def _closed(self, events: list[Event]) -> list[Event]:
        for event in events:
            if isinstance(event, GroupClosed):
                del self._open[event.group.group]
        return events

    def batch(self, groups: Sequence[Group]) -> _Batch:
        return _Batch(0, self.version, sorted(groups, key=lambda g: g.group), self._events)


class ScheduleWork:
    """A schedule of the configuration, played from its first update to its last. `prepare` before
    each `play`."""

    def __init__(self, overrides: Sequence[str], updates: int) -> None:
        config: Config = compose(list(overrides))
        self._schedule = load(config.schedule.target)(config)
        self._lives, self._updates = _Lives(0), updates
        self.rehearsal: Rehearsal

    def prepare(self) -> None:
        self.rehearsal = Rehearsal(self._lives, self._updates)

    def play(self) -> None:
        """Raises RuntimeError where the schedule waits for something else than its Run."""
        coroutine = cast(Any, self._schedule.run(self.rehearsal))
        try:
            coroutine.send(None)
        except StopIteration:
            if self.rehearsal.version != self._updates:
                raise RuntimeError(f"{self.rehearsal.version} updates of {self._updates}") from None
            return
        raise RuntimeError("the schedule awaits something else than its run")


class PlainBookkeeping:
    """Fixed work of the interpreter, of the same kind: coroutines that sort objects into sets,
    dictionaries and lists. None of it is a schedule's."""

    class _Item:
        def __init__(self, name: str, group: int, size: int) -> None:
            self.name, self.group, self.size = name, group, size

    def __init__(self, items: int) -> None:
        draw = random.Random(0)
        self._items = [self._Item(f"i{n}", n % GROUPS, draw.randint(1, 600)) for n in range(items)]

    async def _file(self, item: _Item, held: dict[int, set[str]]) -> int:
        held.setdefault(item.group, set()).add(item.name)
        return await self._count(item)

    async def _count(self, item: _Item) -> int:
        return max(item.size, len(item.name))

    async def _all(self, times: int) -> int:
        found = 0
        for _ in range(times):
            held: dict[int, set[str]] = {}
            waiting: list[PlainBookkeeping._Item] = []
            for item in self._items:
                waiting.append(item)
                found += await self._file(item, held)
                if len(waiting) == GROUPS:
                    ready = [w for w in waiting if w.group in held and w.size > found % 100]
                    ready.sort(key=lambda w: (w.size, w.name))
                    found += len({w.name: (w, w.size) for w in ready})
                    waiting = []
        return found

    def work(self, times: int) -> None:
        coroutine = cast(Any, self._all(times))
        try:
            coroutine.send(None)
        except StopIteration:
            return
