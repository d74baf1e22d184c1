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
            stats = await run.step(batch)
            await run.finish_update(batch, stats)

    async def _learn(self, run: Run, batch: Batch) -> None:
        learnt = {k: v for g in batch.groups for k, v in run.coefficients(g).items()}
        for chunks in run.rounds([t for t, a in learnt.values() if run.matters(a)]):
            await run.learner.accumulate(chunks, [learnt[t.trajectory_id][1] for t in chunks])
