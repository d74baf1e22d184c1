"""Gradient streaming: score gradients are computed while the rest of the batch still rolls out.

ThunderSyncRL (arXiv 2610.05935); math.md sections 2 and 3. The update equals the synchronous one: a
trajectory's score gradient waits in the ledger until its group closes and its advantage is known.
Closed-group work goes first; a trajectory that was not captured when its group closes is added with
its final advantage and needs no ledger. Beyond the paper, `release=submit` does not even wait for
the trajectory's own reward: the score gradient does not contain it. `release=turn` also runs the
forward passes of a trajectory's turns while its tool calls run.
"""

from __future__ import annotations

from typing import cast

from harness.config import Config
from harness.protocols import Batch, FoldSpec, Group, Release, Run, Trajectory
from thundersync.hand import Hand
from thundersync.release import buffers_per_group, choose


class Stream:
    """`schedule=stream`. `schedule.release` is the rung of math.md section 3: batch, group, reward,
    submit, turn, or auto (thundersync/release.py); `ledger.max_open_groups` bounds how many groups
    may hold ledger buffers, past it an open group waits for its close."""

    name = "stream"

    def __init__(self, config: Config) -> None:
        self.release: Release = cast(Release, config.schedule.release)
        self.hears_turns = self.release in ("turn", "auto")
        self._max_open = config.ledger.max_open_groups
        self._buffers_per_group = buffers_per_group(config)

    async def run(self, run: Run) -> None:
        """One optimizer step per batch until the budget ends."""
        async for batch in run.batches():
            await self.play(run, batch, self._rung(run))
            stats = await run.step(batch)
            await run.finish_update(batch, stats)

    def _rung(self, run: Run) -> Release:
        """The next batch's rung; `auto` chooses it, and says why."""
        if self.release != "auto":
            return self.release
        choice = choose(self.play, run, self._buffers_per_group)
        run.decided(choice.release, choice.why)
        return choice.release

    async def play(self, run: Run, batch: Batch, release: Release) -> None:
        """One update at one rung, up to its optimizer step."""
        hand = Hand(release)
        while await self._listen(batch, hand):
            await self._work(run, hand)
        await self._close(run, hand)

    async def _listen(self, batch: Batch, hand: Hand) -> bool:
        """Take what has happened; wait only when there is nothing to do. False at the batch's
        end."""
        events = batch.ready()
        if not events and hand.empty:
            event = await batch.next()
            if event is None:
                return False
            events = [event, *batch.ready()]
        for event in events:
            hand.take(event)
        return True

    async def _work(self, run: Run, hand: Hand) -> None:
        """One piece of work, the most urgent first; then listen again."""
        if hand.lost:
            lost = hand.lost.pop(0)
            await run.learner.discard([hand.settle(lost)])
            hand.uncapture(lost)
        elif hand.rewarded:
            trajectory = hand.rewarded.pop(0)
            await run.learner.commit(hand.settle(trajectory), _reward(trajectory))
        elif hand.useless:
            await run.learner.abandon(hand.give_up(()))
        elif hand.closable:
            await self._close(run, hand)
        elif captures := self._next_captures(run, hand):
            await run.learner.capture(captures)
        elif hand.turns:
            await run.learner.extend(hand.next_turns(run.ranks))

    def _next_captures(self, run: Run, hand: Hand) -> list[Trajectory]:
        """What the learner's ranks take at once: up to one chunk for each. Where a rank has taken
        turns of a trajectory it takes its end as well, so that others of that rank wait."""
        taken: list[Trajectory] = []
        busy: set[int] = set()
        for _ in range(run.ranks):
            chunk = self._next_capture(run, hand, busy)
            if not chunk:
                break
            busy |= {seat for t in chunk if (seat := hand.seat(t)) is not None}
            hand.mark(chunk)
            taken += chunk
        return taken

    def _next_capture(self, run: Run, hand: Hand, busy: set[int]) -> list[Trajectory]:
        """The released trajectory that is most worth it, packed with its group's others of the same
        reward; alone while its reward is unknown. None whose rank is busy."""
        full = self._max_open is not None and len(hand.captured) >= self._max_open
        ready = [
            t for t in hand.candidates
            if run.enters(t) and (not full or t.group in hand.captured)
        ]  # fmt: skip
        if not ready:
            hand.wait()
            return []
        ready = [t for t in ready if hand.seat(t) not in busy]
        if not ready or ready[0].reward is None:
            return ready[:1]
        first = ready[0]
        alike = [t for t in ready if (t.group, t.reward) == (first.group, first.reward)]
        return next(c for c in run.chunks(alike) if first in c)

    async def _close(self, run: Run, hand: Hand) -> None:
        """Fold every closed group; what was not captured is added with its final advantage."""
        late: dict[str, tuple[Trajectory, float]] = {}
        for group in hand.closed:
            known = run.coefficients(group)
            captured = hand.captured.pop(group.group, set())
            if not known:
                await self._drop(run, hand, group, captured)
                continue
            if captured:
                coefficients = {k: (_reward(t), a) for k, (t, a) in known.items()}
                await run.learner.fold(FoldSpec(group.group, coefficients))
            late |= {
                k: (t, a) for k, (t, a) in known.items() if k not in captured and run.matters(a)
            }
        closed = {group.group for group in hand.closed}
        hand.closed.clear()
        hand.use(late)
        if unused := hand.give_up(closed):
            await run.learner.abandon(unused)
        for chunks in run.rounds([t for t, _ in late.values()]):
            await run.learner.accumulate(chunks, [late[t.trajectory_id][1] for t in chunks])

    async def _drop(self, run: Run, hand: Hand, group: Group, captured: set[str]) -> None:
        """A group without a contribution: free what it holds, pending captures included."""
        if waiting := sorted(captured & hand.pending):
            await run.learner.discard(waiting)
            hand.pending.difference_update(waiting)
        if captured:
            await run.learner.drop(group.group)


def _reward(trajectory: Trajectory) -> float:
    if trajectory.reward is None:
        raise ValueError(f"{trajectory.trajectory_id}: in a closed group without a reward")
    return trajectory.reward
