"""Asynchronous training: rollouts never wait for the learner, within a bound on their staleness.

Groups begin as long as no more than (max_staleness + version + 1) x groups_per_batch have been
begun (math.md section 7, AReaL's admission bound); an update trains on the first groups_per_batch
closed ones in the order of `schedule.queue`, with `schedule.correction`'s weights. The bound alone
does not limit the age of a group that others overtake: `schedule.stale_groups` says whether the
learner waits for it, drops it, or trains on it whatever its age. With `wait` no token is ever older
than max_staleness, and nothing is lost (`_needs`). With max_staleness 0 that is the synchronous
schedule, bit for bit where no correction is set.
"""

from __future__ import annotations

from baselines.learning import learn
from harness.config import Config
from harness.protocols import Event, Flow, FlowRun, Group, GroupClosed, Release


class Asynchronous:
    """`schedule=async`."""

    name = "async"
    release: Release | None = None
    hears_turns = False

    def __init__(self, config: Config) -> None:
        self._bound = config.schedule.max_staleness or 0
        self._freshest = config.schedule.queue == "freshest"
        self._stale = config.schedule.stale_groups

    async def run(self, run: FlowRun) -> None:
        """One optimizer step per groups_per_batch closed groups until the budget ends."""
        flow = run.flow()
        closed: list[Group] = []  # in order of closing
        while True:
            flow.allow((self._bound + run.version + 1) * run.groups_per_batch)
            groups = await self._next(run, flow, closed)
            if not groups:
                return
            batch = flow.batch(groups)
            await learn(run, batch)
            stats = await run.step(batch)
            await run.finish_update(batch, stats)

    async def _next(self, run: FlowRun, flow: Flow, closed: list[Group]) -> list[Group]:
        """Take the next update's groups out of `closed`, waiting for them where need be; nothing
        when the budget has no more updates."""
        self._hear(flow.ready(), run, flow, closed)
        while not self._enough(run, flow, closed):
            heard = False
            while not heard:  # nothing but a group's close can make it enough
                event = await flow.next()
                if event is None:
                    return []
                heard = self._hear([event, *flow.ready()], run, flow, closed)
        chosen = self._choose(run, flow, closed)
        closed[:] = [group for group in closed if group not in chosen]
        return chosen

    def _hear(self, events: list[Event], run: FlowRun, flow: Flow, closed: list[Group]) -> bool:
        """Whether a group has closed."""
        found = [event.group for event in events if isinstance(event, GroupClosed)]
        closed += found
        if self._stale == "drop":
            for group in [g for g in closed if self._age(run, g) > self._bound]:
                closed.remove(group)
                flow.discard(group, "stale")
        return bool(found)

    def _needs(self, run: FlowRun, flow: Flow, closed: list[Group]) -> list[tuple[int, int]]:
        """(version, how many of the groups begun at it or before this update has to take), so that
        nothing becomes too old: the k updates after this one can take k batches of what would be
        too old after them. It is never more than one batch: at most (k + 1) batches wait that
        would be too old after k updates, before the first update because the bound admits no more,
        after each because it took what it had to."""
        if self._stale != "wait":
            return []
        waiting, size = [*flow.open, *closed], run.groups_per_batch
        versions = range(run.version - self._bound, run.version + 1)
        return [(v, _begun(waiting, v) - k * size) for k, v in enumerate(versions)]

    def _enough(self, run: FlowRun, flow: Flow, closed: list[Group]) -> bool:
        needs = self._needs(run, flow, closed)
        missing = any(_begun(closed, version) < need for version, need in needs)
        return len(closed) >= run.groups_per_batch and not missing

    def _choose(self, run: FlowRun, flow: Flow, closed: list[Group]) -> list[Group]:
        """What has to be taken, then the others, both in the order of the queue."""
        ordered = list(closed)
        if self._freshest:  # of equal age, finished first
            ordered.sort(key=lambda group: self._age(run, group))
        chosen: list[Group] = []
        for version, need in self._needs(run, flow, closed):
            old = [g for g in ordered if g.version <= version and g not in chosen]
            chosen += old[: max(0, need - _begun(chosen, version))]
        others = [group for group in ordered if group not in chosen]
        return [*chosen, *others][: run.groups_per_batch]

    def _age(self, run: FlowRun, group: Group) -> int:
        """Versions since the oldest token of a closed group."""
        spans = [span.version for t in group.trajectories for span in t.version_spans]
        return run.version - min(spans, default=run.version)


def _begun(groups: list[Group], version: int) -> int:
    """How many began at this version or before."""
    return sum(group.version <= version for group in groups)
