"""One step off: the next batch is rolled out with the previous weights while the learner steps.

Batch k + 1 begins when batch k is closed, with the weights that batch k was rolled out with or
those that came of batch k - 1; the learner trains on batch k meanwhile, and publishes once batch
k + 1 is closed too. So every token of every batch but the first is exactly one version old, and no
weights change while anything rolls out.
"""

from __future__ import annotations

from baselines.learning import learn
from harness.budget import BudgetEnded
from harness.config import Config
from harness.protocols import Flow, FlowRun, Group, GroupClosed, Release


class OneStepOff:
    """`schedule=one_step_off`."""

    name = "one_step_off"
    release: Release | None = None
    hears_turns = False

    def __init__(self, config: Config) -> None:
        """Nothing of its own to configure."""

    async def run(self, run: FlowRun) -> None:
        """One optimizer step per batch until the budget ends."""
        flow = run.flow()
        begun = (run.version + 1) * run.groups_per_batch  # a run may go on after so many updates
        flow.allow(begun)
        groups = await self._closed(flow)
        while groups:
            batch = flow.batch(groups)
            begun += run.groups_per_batch
            flow.allow(begun)
            await learn(run, batch)
            stats = await run.step(batch)
            try:
                groups = await self._closed(flow)
            except BudgetEnded:  # the update at hand is whole all the same
                await run.finish_update(batch, stats)
                raise
            await run.finish_update(batch, stats)

    async def _closed(self, flow: Flow) -> list[Group]:
        """All that was begun, once it is closed; nothing when the budget has no more updates."""
        groups = []
        while (event := await flow.next()) is not None:
            if isinstance(event, GroupClosed):
                groups.append(event.group)
        return groups
