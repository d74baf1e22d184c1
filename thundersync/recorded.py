"""Recorded trajectories through any schedule, on one learner in this process.

The schedules run as they are: only the batch and the learner's process are stood in for. Used by
the parity check (thundersync/parity.py) and by tests that choose the order of arrival.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from harness.config import Config
from harness.learner.client import scored
from harness.learner.torch_learner import TorchLearner
from harness.objectives import opd
from harness.packing import abreast, pack
from harness.protocols import (
    Event,
    FoldSpec,
    Group,
    GroupClosed,
    Interval,
    ParityFigures,
    Release,
    RewardArrived,
    Schedule,
    StepStats,
    Trajectory,
    TrajectoryFinished,
    TrajectoryLost,
)
from harness.timings import History, UpdateTimings

EVENT_S = 0.001  # short: the learner is what a rung's choice is about here
Pack = Callable[[Sequence[Trajectory], int], list[list[Trajectory]]]


class RecordedBatch:
    """A batch whose events happen in a given order, `burst` at a time.

    Trajectories finish in the order of `arrival`; a trajectory's reward arrives (and is set, on a
    copy of its own) `reward_delay` finishes later. Those in `retried` are lost once, after their
    last token (as `ID-lost`), and then finish again; those in `dropped` are lost for good, and
    their group closes without trajectories. Both map to how many places later in `arrival` the loss
    happens: 0 is at once, in the burst of the finish or the next; any other loss happens only when
    the schedule waits for it, having captured what it may. Every event takes EVENT_S of a time of
    its own.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        arrival: Sequence[Trajectory],
        burst: int,
        reward_delay: int = 0,
        retried: Mapping[str, int] | None = None,
        dropped: Mapping[str, int] | None = None,
    ) -> None:
        self.index = self.version = 0
        self.now_s = 0.0
        self._burst = burst
        self._rewards = {t.trajectory_id: t.reward for t in arrival}
        self._events: list[Event] = []
        self._late: set[str] = set()  # trajectories whose loss is waited for
        retried, dropped = retried or {}, dropped or {}
        played = {t.trajectory_id: replace(t, reward=None) for t in arrival}
        failed = {t.group for t in arrival if t.trajectory_id in dropped}
        self.groups = [
            replace(g, trajectories=[], dropped=True)
            if g.group in failed
            else replace(g, trajectories=[played[t.trajectory_id] for t in g.trajectories])
            for g in groups
        ]
        self._under_way = {g.group: {t.trajectory_id for t in g.trajectories} for g in groups}
        lives = self._lives([played[t.trajectory_id] for t in arrival], retried, dropped)
        self._sequence(lives, played.keys() - dropped.keys(), reward_delay)

    def _lives(
        self, arrival: Sequence[Trajectory], retried: Mapping[str, int], dropped: Mapping[str, int]
    ) -> list[TrajectoryFinished | TrajectoryLost]:
        """Finishes and losses in their order; a loss comes after the finish at its place."""
        placed: list[tuple[int, bool, TrajectoryFinished | TrajectoryLost]] = []
        for place, trajectory in enumerate(arrival):
            name = trajectory.trajectory_id
            final = name in dropped
            if not final and name not in retried:
                placed.append((place, False, TrajectoryFinished(trajectory)))
                continue
            later = dropped[name] if final else retried[name]
            lost = trajectory if final else replace(trajectory, trajectory_id=f"{name}-lost")
            if later:
                self._late.add(lost.trajectory_id)
            loss = TrajectoryLost(lost, "exec_transport", final)
            placed += [(place, False, TrajectoryFinished(lost)), (place + later, True, loss)]
            if not final:
                placed.append((place + later, True, TrajectoryFinished(trajectory)))
        return [event for *_, event in sorted(placed, key=lambda p: p[:2])]

    def _sequence(
        self,
        lives: Sequence[TrajectoryFinished | TrajectoryLost],
        judged: Container[str],
        reward_delay: int,
    ) -> None:
        """All events: rewards of those that are judged, late, and the groups' closes."""
        unjudged: list[Trajectory] = []
        for event in lives:
            self._events.append(event)
            if isinstance(event, TrajectoryLost):
                self._end(event.trajectory)
            elif event.trajectory.trajectory_id in judged:
                unjudged.append(event.trajectory)
                if len(unjudged) > reward_delay:
                    self._judge(unjudged.pop(0))
        for trajectory in unjudged:
            self._judge(trajectory)

    def _judge(self, trajectory: Trajectory) -> None:
        self._events.append(RewardArrived(trajectory))
        self._end(trajectory)

    def _end(self, trajectory: Trajectory) -> None:
        """Sequence a group's close after the last of its trajectories; one that is tried again is
        still under way."""
        under_way = self._under_way[trajectory.group]
        if trajectory.trajectory_id in under_way:
            under_way.remove(trajectory.trajectory_id)
            if not under_way:
                group = next(g for g in self.groups if g.group == trajectory.group)
                self._events.append(GroupClosed(group))

    def _deliver(self, count: int) -> list[Event]:
        taken, self._events = self._events[:count], self._events[count:]
        for event in taken:
            self.now_s += EVENT_S
            if isinstance(event, TrajectoryFinished):
                event.trajectory.finished_s = self.now_s
            elif isinstance(event, RewardArrived):
                event.trajectory.reward = self._rewards[event.trajectory.trajectory_id]
                event.trajectory.reward_s = self.now_s
        return taken

    async def next(self) -> Event | None:
        return next(iter(self._deliver(1)), None)

    def ready(self) -> list[Event]:
        for place, event in enumerate(self._events[: self._burst]):
            if isinstance(event, TrajectoryLost) and event.trajectory.trajectory_id in self._late:
                return self._deliver(place)
        return self._deliver(self._burst)


class InlineLearner:
    """The Learner's verbs on a service in this process; keeps each update's direction (flat,
    float64) and statistics, and what was discarded and dropped."""

    def __init__(self, service: TorchLearner) -> None:
        self.service = service
        self.directions: list[torch.Tensor] = []
        self.stats: list[StepStats] = []
        self.discarded: list[str] = []
        self.dropped: list[int] = []

    async def accumulate(
        self, trajectories: Sequence[Trajectory], coefficients: Sequence[float]
    ) -> None:
        self.service.accumulate([scored(t, behaviour=True) for t in trajectories], coefficients)

    async def capture(self, trajectories: Sequence[Trajectory]) -> None:
        self.service.capture([scored(t, behaviour=True) for t in trajectories])

    async def reference_kl(self, trajectories: Sequence[Trajectory]) -> list[float]:
        return self.service.reference_kl([scored(t) for t in trajectories])

    async def commit(self, trajectory_id: str, reward: float) -> None:
        self.service.commit(trajectory_id, reward)

    async def discard(self, trajectory_ids: Sequence[str]) -> None:
        self.discarded += trajectory_ids
        self.service.discard(trajectory_ids)

    async def fold(self, spec: FoldSpec) -> None:
        self.service.fold(spec)

    async def drop(self, group: int) -> None:
        self.dropped.append(group)
        self.service.drop(group)

    async def parity_begin(self, normaliser: float) -> None:
        self.service.parity_begin(normaliser)

    async def parity_add(self) -> None:
        self.service.parity_add()

    async def parity_end(self) -> ParityFigures:
        return self.service.parity_end()

    async def drain_intervals(self) -> list[Interval]:
        return self.service.drain_intervals()

    async def step(self, normaliser: float) -> StepStats:
        direction = self.service.update_direction(normaliser)
        self.directions.append(torch.cat([t.flatten().double() for t in direction]))
        self.stats.append(self.service.step(normaliser))
        return self.stats[-1]


class RecordedRun:
    """A Run over recorded batches: the real objective, the real packing, no engine."""

    def __init__(
        self,
        learner: Any,
        config: Config,
        batches: Sequence[RecordedBatch],
        pack_chunks: Pack = pack,
    ) -> None:
        self.learner = learner
        self.ranks = config.learner.ranks
        self._objective = opd.make(config.objective, config.rollout.group_size)
        self._batches = batches
        self._pack = pack_chunks
        self._chunk_tokens = config.schedule.chunk_tokens
        self.timings = History(separate=self._objective.regularised)
        self.decisions: list[tuple[Release, str]] = []

    def decided(self, release: Release, why: str) -> None:
        self.decisions.append((release, why))

    async def batches(self) -> AsyncIterator[RecordedBatch]:
        for batch in self._batches:
            yield batch

    def coefficients(self, group: Group) -> dict[str, tuple[Trajectory, float]]:
        return self._objective.coefficients(group)

    def enters(self, trajectory: Trajectory) -> bool:
        return self._objective.enters(trajectory)

    def matters(self, advantage: float) -> bool:
        return self._objective.matters(advantage)

    def chunks(self, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
        return self._pack(trajectories, self._chunk_tokens)

    def rounds(self, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
        return abreast(self.chunks(trajectories), self.ranks)

    async def step(self, batch: Any) -> StepStats:
        return await self.learner.step(self._objective.normaliser(batch.groups))

    async def finish_update(self, batch: Any, stats: StepStats) -> None:
        """Keep what the update measured; the weights stay in the learner: nobody else needs
        them."""
        intervals = await self.learner.drain_intervals()
        self.timings.add(
            UpdateTimings(
                batch.groups, 0.0, batch.now_s, batch.now_s, intervals, None, stats.buffer_bytes,
                stats.free_bytes,
            )
        )  # fmt: skip


def play(
    schedule: Schedule,
    service: TorchLearner,
    config: Config,
    batches: Sequence[RecordedBatch],
    pack_chunks: Pack = pack,
) -> InlineLearner:
    """Run a schedule over recorded batches; steps are taken (with a learning rate of 0 the weights
    stay, and every batch is played at the same weights)."""
    learner = InlineLearner(service)
    asyncio.run(schedule.run(RecordedRun(learner, config, batches, pack_chunks)))
    return learner


def permuted_packing(seed: int) -> Pack:
    """Packing for the control: rows in random order, random chunk sizes."""
    generator = random.Random(seed)

    def pack_permuted(
        trajectories: Sequence[Trajectory], chunk_tokens: int
    ) -> list[list[Trajectory]]:
        rows = list(trajectories)
        generator.shuffle(rows)
        chunks = []
        while rows:
            size = generator.randint(1, max(1, len(rows) // 2))
            chunks.append(rows[:size])
            rows = rows[size:]
        return chunks

    return pack_permuted
