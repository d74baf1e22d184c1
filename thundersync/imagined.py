"""A finished update, played again in imagination: its events at their recorded times, a learner
whose verbs are the seconds that they take."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.learner.placement import alike_together, parts, split
from harness.protocols import (
    Event,
    FoldSpec,
    Group,
    GroupClosed,
    RewardArrived,
    Run,
    Trajectory,
    TrajectoryFinished,
    TurnGenerated,
)
from harness.sequences import padded
from harness.timings import Costs, UpdateTimings
from thundersync.imagined_turns import Begun, beside


class ImaginedBatch:
    """A finished update's events at their recorded times, those of `turns` if they matter; waiting
    for one moves the time on."""

    def __init__(self, update: UpdateTimings, turns: bool = False) -> None:
        self.index = self.version = 0
        self.now_s = update.started_s
        self._rewards = {t.trajectory_id: t.reward for t in update.trajectories}
        timed: list[tuple[float, int, Event]] = []
        self.groups: Sequence[Group] = [
            replace(g, trajectories=[copy.copy(t) for t in g.trajectories]) for g in update.groups
        ]
        for group, played in zip(update.groups, self.groups, strict=True):
            for t in played.trajectories:
                t.reward = None
                told = range(len(t.turns) if turns else 0)
                timed += [(t.turns[n].generated_s, 0, TurnGenerated(t, n)) for n in told]
                timed.append((t.finished_s, 1, TrajectoryFinished(t)))
                timed.append((t.reward_s, 2, RewardArrived(t)))
            timed.append((update.closed_s(group), 3, GroupClosed(played)))
        self._events = sorted(timed, key=lambda e: e[:2])
        self._next = 0

    def ready(self) -> list[Event]:
        taken: list[Event] = []
        while self._next < len(self._events) and self._events[self._next][0] <= self.now_s:
            taken.append(self._take())
        return taken

    async def next(self) -> Event | None:
        if self._next == len(self._events):
            return None
        self.now_s = max(self.now_s, self._events[self._next][0])
        return self._take()

    def _take(self) -> Event:
        event = self._events[self._next][2]
        self._next += 1
        if isinstance(event, RewardArrived):
            event.trajectory.reward = self._rewards[event.trajectory.trajectory_id]
        return event


class ImaginedLearner:
    """The learner's verbs as the seconds that they take and the ledger buffers that they fill.

    `buffers_per_group` bounds a group's; `always` adds the buffers of reward-independent terms.
    `ranks` work side by side, and a verb ends with the last of them."""

    def __init__(
        self,
        batch: ImaginedBatch,
        costs: Costs,
        buffers_per_group: int,
        always: bool,
        ranks: int = 1,
    ) -> None:
        self._batch, self._costs, self._ranks = batch, costs, ranks
        self._buffers_per_group, self._always = buffers_per_group, always
        self._groups: dict[int, set[float]] = {}
        self._pending: dict[str, int] = {}
        self._captured_s: dict[int, float] = {}
        self.buffers_peak = 0
        self.wasted_s = 0.0
        rows = [t for group in batch.groups for t in group.trajectories]
        self._turns = None if costs.turns is None else beside(costs, rows)
        self._begun: dict[str, Begun] = {}
        self.live_bytes_peak = 0.0

    async def extend(self, turns: Mapping[int, tuple[Trajectory, int]]) -> None:
        assert self._turns is not None, "turns of unknown cost are not played"
        trajectory, tokens = turns[0]  # costs of turns are those of one process
        begun = self._begun.setdefault(trajectory.trajectory_id, Begun())
        self._batch.now_s += begun.extend(self._turns, trajectory, tokens)
        live_bytes = sum(b.live_bytes(self._turns) for b in self._begun.values())
        self.live_bytes_peak = max(self.live_bytes_peak, live_bytes)

    async def abandon(self, trajectory_ids: Sequence[str]) -> None:
        for trajectory_id in trajectory_ids:
            del self._begun[trajectory_id]

    def _finish(self, trajectories: Sequence[Trajectory]) -> tuple[float, list[Trajectory]]:
        """(seconds of those whose turns were begun, all others)."""
        left_s, others = 0.0, []
        for t in trajectories:
            begun = self._begun.pop(t.trajectory_id, None)
            if begun is None or self._turns is None:
                others.append(t)
            else:
                left_s += begun.left_s(self._turns, len(t.tokens_T))
        return left_s, others

    async def accumulate(
        self, trajectories: Sequence[Trajectory], coefficients: Sequence[float]
    ) -> None:
        left_s, others = self._finish(trajectories)
        shares = split(others, self._ranks)
        cost = self._costs.accumulate
        passes_s = [cost.seconds(padded(s)) for s in shares if s]
        self._batch.now_s += left_s + max(passes_s, default=0.0)

    async def capture(self, trajectories: Sequence[Trajectory]) -> None:
        """One pass per (group, reward), one per trajectory while its reward is unknown."""
        took_s: list[float] = []
        for share in split(alike_together(trajectories), self._ranks):
            known = {t.trajectory_id: t for t in share}
            took_s.append(0.0)
            for part in parts(share):
                rows = [known[i] for i in part.trajectory_ids]
                seconds, others = self._finish(rows)
                if others:
                    seconds += self._costs.capture.seconds(padded(others))
                took_s[-1] += seconds
                self._captured_s[part.group] = self._captured_s.get(part.group, 0.0) + seconds
                if part.reward is None:
                    self._pending[rows[0].trajectory_id] = part.group
                else:
                    self._groups.setdefault(part.group, set()).add(part.reward)
        self._batch.now_s += max(took_s)
        self._account()

    async def commit(self, trajectory_id: str, reward: float) -> None:
        self._groups.setdefault(self._pending.pop(trajectory_id), set()).add(reward)

    async def discard(self, trajectory_ids: Sequence[str]) -> None:
        for trajectory_id in trajectory_ids:
            del self._pending[trajectory_id]

    async def fold(self, spec: FoldSpec) -> None:
        self._batch.now_s += self._costs.fold_s
        self._groups.pop(spec.group)

    async def drop(self, group: int) -> None:
        self._groups.pop(group, None)
        self.wasted_s += self._captured_s[group]

    def _account(self) -> None:
        extra = int(self._always)
        held = sum(min(len(r), self._buffers_per_group) + extra for r in self._groups.values())
        self.buffers_peak = max(self.buffers_peak, held + len(self._pending) * (1 + extra))


class ImaginedRun:
    """The real run's objective and packing on an imagined learner."""

    def __init__(self, run: Run, learner: ImaginedLearner) -> None:
        self._run, self.learner = run, learner
        self.ranks = run.ranks

    def coefficients(self, group: Group) -> dict[str, tuple[Trajectory, float]]:
        return self._run.coefficients(group)

    def enters(self, trajectory: Trajectory) -> bool:
        return self._run.enters(trajectory)

    def matters(self, advantage: float) -> bool:
        return self._run.matters(advantage)

    def chunks(self, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
        return self._run.chunks(trajectories)

    def rounds(self, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
        return self._run.rounds(trajectories)
