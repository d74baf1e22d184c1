"""Batch-synchronous training: the reference that every other schedule is compared with.

Wait until every trajectory of the batch has its reward, accumulate with final advantages, step,
publish. Nothing is stale and nothing overlaps. With `schedule.placement=colocated` engine and
learner take turns on all devices instead of having some each.
"""

from __future__ import annotations

from baselines.learning import learn
from harness.config import Config
from harness.protocols import Release, Run


class Sync:
    """`schedule=sync`."""

    name = "sync"
    release: Release = "batch"
    hears_turns = False

    def __init__(self, config: Config) -> None:
        """Nothing of its own to configure."""

    async def run(self, run: Run) -> None:
        """One optimizer step per batch until the budget ends."""
        async for batch in run.batches():
            while await batch.next() is not None:
                pass
            await learn(run, batch)
            stats = await run.step(batch)
            await run.finish_update(batch, stats)
