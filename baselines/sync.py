"""Batch-synchronous training: the reference that every other schedule is compared with.

Wait until every trajectory of the batch has its reward, accumulate with final advantages, step,
publish. Nothing is stale and nothing overlaps.
"""

from __future__ import annotations

from harness.config import Config
from harness.protocols import Batch, Release, Run


class Sync:
    """`schedule=sync`."""

    name = "sync"
    release: Release = "batch"

    def __init__(self, config: Config) -> None:
        """Nothing of its own to configure."""

    async def run(self, run: Run) -> None:
        """One optimizer step per batch until the budget ends."""
        async for batch in run.batches():
            while await batch.next() is not None:
                pass
            await self._learn(run, batch)
            stats = await run.learner.step(run.normaliser(batch))
            await run.finish_update(batch, stats)

    async def _learn(self, run: Run, batch: Batch) -> None:
        advantages = {}
        for group in batch.groups:
            for trajectory, advantage in zip(
                group.trajectories, run.advantages(group), strict=True
            ):
                if advantage != 0.0:
                    advantages[trajectory.trajectory_id] = advantage
        learnt = [t for g in batch.groups for t in g.trajectories if t.trajectory_id in advantages]
        for chunk in run.chunks(learnt):
            await run.learner.accumulate(chunk, [advantages[t.trajectory_id] for t in chunk])
