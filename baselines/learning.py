"""What every baseline does with closed groups."""

from __future__ import annotations

from harness.protocols import Batch, Run


async def learn(run: Run, batch: Batch) -> None:
    """Accumulate a closed batch with its final advantages."""
    learnt = {k: v for g in batch.groups for k, v in run.coefficients(g).items()}
    for chunks in run.rounds([t for t, a in learnt.values() if run.matters(a)]):
        await run.learner.accumulate(chunks, [learnt[t.trajectory_id][1] for t in chunks])
