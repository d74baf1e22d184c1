"""Recorded trajectories through any schedule, on one learner in this process.

The schedules run as they are: only the batch and the learner's process are stood in for. Used by
the parity check (thundersync/parity.py) and by tests that choose the order of arrival.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import torch

from harness.config import Config
from harness.learner.client import scored
from harness.learner.torch_learner import TorchLearner
from harness.objectives import opd
from harness.objectives.passes import ByObjective
from harness.packing import pack
from harness.parity import apart
from harness.protocols import (
    FoldSpec,
    Interval,
    ParityFigures,
    Release,
    Schedule,
    StepStats,
    Trajectory,
)
from harness.timings import History, UpdateTimings
from thundersync.recorded_batch import RecordedBatch

Pack = Callable[[Sequence[Trajectory], int], list[list[Trajectory]]]


class InlineLearner:
    """The Learner's verbs on a service in this process; keeps each update's direction (flat,
    float64) and statistics, and what was discarded, dropped and abandoned."""

    def __init__(self, service: TorchLearner) -> None:
        self.service = service
        self.directions: list[torch.Tensor] = []
        self.stats: list[StepStats] = []
        self.discarded: list[str] = []
        self.abandoned: list[str] = []
        self.dropped: list[int] = []

    async def accumulate(
        self, trajectories: Sequence[Trajectory], coefficients: Sequence[float]
    ) -> None:
        self.service.accumulate([scored(t, behaviour=True) for t in trajectories], coefficients)

    async def capture(self, trajectories: Sequence[Trajectory]) -> None:
        self.service.capture([scored(t, behaviour=True) for t in trajectories])

    async def extend(self, turns: Mapping[int, tuple[Trajectory, int]]) -> None:
        trajectory, tokens = turns[0]
        self.service.extend(scored(trajectory, behaviour=True, tokens=tokens))

    async def abandon(self, trajectory_ids: Sequence[str]) -> None:
        self.abandoned += trajectory_ids
        self.service.abandon(trajectory_ids)

    async def turn_settings(self) -> Mapping[str, int | None] | None:
        return self.service.turn_settings()

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


class RecordedRun(ByObjective):
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
        self._without_padding = config.learner.packing == "packed"
        self.timings = History(separate=self._objective.regularised)
        self.decisions: list[tuple[Release, str]] = []

    def decided(self, release: Release, why: str) -> None:
        self.decisions.append((release, why))

    async def batches(self) -> AsyncIterator[RecordedBatch]:
        for batch in self._batches:
            yield batch

    def chunks(self, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
        if self._pack is pack:
            return super().chunks(trajectories)
        return self._pack(trajectories, self._chunk_tokens)

    async def step(self, batch: Any) -> StepStats:
        return await self.learner.step(self._objective.normaliser(batch.groups))

    async def finish_update(self, batch: Any, stats: StepStats) -> None:
        """Keep what the update measured; the weights stay in the learner: nobody else needs
        them."""
        intervals = await self.learner.drain_intervals()
        self.timings.add(
            UpdateTimings(
                batch.groups, 0.0, batch.now_s, batch.now_s, intervals, None, stats.buffer_bytes,
                stats.free_bytes, stats.turn_costs,
            )
        )  # fmt: skip


def play(
    schedule: Schedule,
    service: TorchLearner,
    config: Config,
    batches: Sequence[RecordedBatch],
    pack_chunks: Pack = pack,
    learner: InlineLearner | None = None,
) -> InlineLearner:
    """Run a schedule over recorded batches; steps are taken (with a learning rate of 0 the weights
    stay, and every batch is played at the same weights). `learner` is what stands between, where
    another is wanted."""
    learner = learner or InlineLearner(service)
    asyncio.run(schedule.run(RecordedRun(learner, config, batches, pack_chunks)))
    return learner


def permuted_packing(seed: int, whole: bool = False) -> Pack:
    """Packing for the control: rows in random order, random chunk sizes. A row is a sequence; a
    trajectory where `whole` (the objective's: no part of it has a gradient of its own)."""
    generator = random.Random(seed)

    def pack_permuted(
        trajectories: Sequence[Trajectory], chunk_tokens: int
    ) -> list[list[Trajectory]]:
        rows = [row for t in trajectories for row in ([t] if whole else apart(t))]
        generator.shuffle(rows)
        chunks = []
        while rows:
            size = generator.randint(1, max(1, len(rows) // 2))
            chunks.append(rows[:size])
            rows = rows[size:]
        return chunks

    return pack_permuted
