"""Parity: recorded trajectories through any schedule, on one learner in this process.

math.md section 6: the same trajectories at the same weights must give the same update under every
schedule; how equal is "the same" is measured by a control, the synchronous update with its rows
permuted and packed anew. Schedules run as they are: only the batch and the learner are stood in
for.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import torch

from harness.config import Config
from harness.learner.client import scored
from harness.learner.torch_learner import TorchLearner
from harness.objectives.grpo import Grpo
from harness.protocols import (
    Event,
    FoldSpec,
    Group,
    GroupClosed,
    RewardArrived,
    Schedule,
    StepStats,
    Trajectory,
    TrajectoryFinished,
)
from harness.training import pack

Pack = Callable[[Sequence[Trajectory], int], list[list[Trajectory]]]


class RecordedBatch:
    """A batch whose events happen in a given order of arrival, `burst` at a time."""

    def __init__(self, groups: Sequence[Group], arrival: Sequence[Trajectory], burst: int) -> None:
        self.index = self.version = 0
        self.groups = groups
        self._burst = burst
        self._events: list[Event] = []
        waiting = {g.group: len(g.trajectories) for g in groups}
        by_number = {g.group: g for g in groups}
        for trajectory in arrival:
            self._events += [TrajectoryFinished(trajectory), RewardArrived(trajectory)]
            waiting[trajectory.group] -= 1
            if waiting[trajectory.group] == 0:
                self._events.append(GroupClosed(by_number[trajectory.group]))

    async def next(self) -> Event | None:
        return self._events.pop(0) if self._events else None

    def ready(self) -> list[Event]:
        taken, self._events = self._events[: self._burst], self._events[self._burst :]
        return taken


class InlineLearner:
    """The Learner's verbs on a service in this process; keeps each update's direction (flat,
    float64) and statistics."""

    def __init__(self, service: TorchLearner) -> None:
        self.service = service
        self.directions: list[torch.Tensor] = []
        self.stats: list[StepStats] = []

    async def accumulate(
        self, trajectories: Sequence[Trajectory], coefficients: Sequence[float]
    ) -> None:
        self.service.accumulate([scored(t) for t in trajectories], coefficients)

    async def capture(self, trajectories: Sequence[Trajectory]) -> None:
        self.service.capture([scored(t) for t in trajectories])

    async def commit(self, trajectory_id: str, reward: float) -> None:
        self.service.commit(trajectory_id, reward)

    async def discard(self, trajectory_ids: Sequence[str]) -> None:
        self.service.discard(trajectory_ids)

    async def fold(self, spec: FoldSpec) -> None:
        self.service.fold(spec)

    async def drop(self, group: int) -> None:
        self.service.drop(group)

    async def step(self, normaliser: float) -> StepStats:
        direction = self.service.update_direction(normaliser)
        self.directions.append(torch.cat([t.flatten().double() for t in direction]))
        self.stats.append(self.service.step(normaliser))
        return self.stats[-1]


class RecordedRun:
    """A Run over recorded batches: the real objective, the real packing, no engine."""

    def __init__(
        self,
        learner: InlineLearner,
        config: Config,
        batches: Sequence[RecordedBatch],
        pack_chunks: Pack = pack,
    ) -> None:
        self.learner: Any = learner
        self._objective = Grpo(config.objective, config.rollout.group_size)
        self._batches = batches
        self._pack = pack_chunks
        self._chunk_tokens = config.schedule.chunk_tokens

    async def batches(self) -> AsyncIterator[RecordedBatch]:
        for batch in self._batches:
            yield batch

    def advantages(self, group: Group) -> list[float]:
        return self._objective.advantages(
            [t.reward for t in group.trajectories if t.reward is not None]
        )

    def chunks(self, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
        return self._pack(trajectories, self._chunk_tokens)

    def normaliser(self, batch: Any) -> float:
        return self._objective.normaliser([t for g in batch.groups for t in g.trajectories])

    async def finish_update(self, batch: Any, stats: StepStats) -> None:
        """The weights stay in the learner: nobody else needs them."""


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


def relative_error(got: torch.Tensor, reference: torch.Tensor) -> float:
    """Relative gradient error. Raises ValueError where the reference is zero: that checks
    nothing."""
    norm = torch.linalg.norm(reference)
    if norm == 0:
        raise ValueError("the reference update is zero (all groups degenerate): nothing to compare")
    return float(torch.linalg.norm(got - reference) / norm)


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
