"""Gradient streaming: score gradients are computed while the rest of the batch still rolls out.

ThunderSyncRL (arXiv 2610.05935); math.md sections 2 and 3. The update equals the synchronous one: a
trajectory's score gradient waits in the ledger until its group closes and its advantage is known.
Closed-group work goes first; a trajectory that was not captured when its group closes is added with
its final advantage and needs no ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from harness.config import Config
from harness.protocols import (
    Batch,
    Event,
    FoldSpec,
    Group,
    GroupClosed,
    Release,
    RewardArrived,
    Run,
    Trajectory,
)


@dataclass
class _Hand:
    """What may be worked on now: closed groups, and released trajectories of open ones."""

    closed: list[Group] = field(default_factory=list)
    released: list[Trajectory] = field(default_factory=list)
    captured: dict[int, set[str]] = field(default_factory=dict)  # open group -> trajectory ids

    def take(self, event: Event, capture: bool) -> None:
        if isinstance(event, RewardArrived) and capture:
            self.released.append(event.trajectory)
        elif isinstance(event, GroupClosed):
            self.closed.append(event.group)
            self.released = [t for t in self.released if t.group != event.group.group]


class Stream:
    """`schedule=stream`. `schedule.release` is the rung of math.md section 3: batch, group or
    reward; `ledger.max_open_groups` bounds how many groups may hold ledger buffers, past it an open
    group waits for its close."""

    name = "stream"

    def __init__(self, config: Config) -> None:
        self.release = cast(Release, config.schedule.release)
        self._max_open = config.ledger.max_open_groups

    async def run(self, run: Run) -> None:
        """One optimizer step per batch until the budget ends."""
        async for batch in run.batches():
            hand = _Hand()
            while await self._listen(batch, hand):
                if hand.closed and self.release != "batch":
                    await self._close(run, hand)
                elif chunk := self._next_capture(run, hand):
                    await run.learner.capture(chunk)
            await self._close(run, hand)
            stats = await run.learner.step(run.normaliser(batch))
            await run.finish_update(batch, stats)

    async def _listen(self, batch: Batch, hand: _Hand) -> bool:
        """Take what has happened; wait only when there is nothing to do. False at the batch's
        end."""
        events = batch.ready()
        idle = not (hand.released or (hand.closed and self.release != "batch"))
        if not events and idle:
            event = await batch.next()
            if event is None:
                return False
            events = [event, *batch.ready()]
        for event in events:
            hand.take(event, capture=self.release == "reward")
        return True

    def _next_capture(self, run: Run, hand: _Hand) -> list[Trajectory]:
        """The oldest released trajectory, packed with its group's others of the same reward."""
        full = self._max_open is not None and len(hand.captured) >= self._max_open
        ready = [t for t in hand.released if not full or t.group in hand.captured]
        if not ready:
            hand.released.clear()  # they wait for their group's close
            return []
        first = ready[0]
        alike = [t for t in ready if (t.group, t.reward) == (first.group, first.reward)]
        chunk = next(c for c in run.chunks(alike) if first in c)
        hand.released = [t for t in hand.released if t not in chunk]
        hand.captured.setdefault(first.group, set()).update(t.trajectory_id for t in chunk)
        return chunk

    async def _close(self, run: Run, hand: _Hand) -> None:
        """Fold every closed group; what was not captured is added with its final advantage."""
        late: dict[str, tuple[Trajectory, float]] = {}
        for group in hand.closed:
            advantages = run.advantages(group)
            captured = hand.captured.pop(group.group, set())
            pairs = list(zip(group.trajectories, advantages, strict=True))
            if not any(advantages):
                if captured:
                    await run.learner.drop(group.group)
                continue
            late |= {
                t.trajectory_id: (t, a)
                for t, a in pairs
                if a != 0.0 and t.trajectory_id not in captured
            }
            if captured:
                known = {t.trajectory_id: (_reward(t), a) for t, a in pairs}
                await run.learner.fold(FoldSpec(group.group, known))
        hand.closed.clear()
        for chunk in run.chunks([t for t, _ in late.values()]):
            await run.learner.accumulate(chunk, [late[t.trajectory_id][1] for t in chunk])


def _reward(trajectory: Trajectory) -> float:
    if trajectory.reward is None:
        raise ValueError(f"{trajectory.trajectory_id}: in a closed group without a reward")
    return trajectory.reward
