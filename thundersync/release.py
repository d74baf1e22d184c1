"""`schedule.release=auto`: the rung for the next batch, from what the last ones measured.

Every rung of the ladder (math.md section 3) is played in imagination: the schedule's own code, on
the recorded arrival times of the last few updates, with a learner whose verbs cost what this run's
cost. Captures that turn out to be for groups without a signal, single-trajectory passes and
folds are paid for there as they are in truth. The rung that ends earliest is taken; within a
hundredth of it, the one that holds less. What is assumed: arrivals do not depend on the rung, and
the next batch is like the last ones.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from harness.config import Config
from harness.learner.placement import alike_together, parts, split
from harness.objectives.estimators import ESTIMATORS
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
    TrajectoryFinished,
)
from harness.timings import Costs, UpdateTimings, padded_tokens

LADDER: tuple[Release, ...] = ("batch", "group", "reward", "submit")  # what holds less comes first
START: Release = "group"  # nothing held, nothing wasted, and never later than batch
LOOK_BACK = 3  # updates; each is played once per rung
TIE = 0.01
FREE_SHARE = 0.5  # of the free memory that ledgers may take: activations need some as well

Play = Callable[[Run, Batch, Release], Awaitable[None]]


class ImaginedBatch:
    """A finished update's events at their recorded times; waiting for one moves the time on."""

    def __init__(self, update: UpdateTimings) -> None:
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
                timed.append((t.finished_s, 0, TrajectoryFinished(t)))
                timed.append((t.reward_s, 1, RewardArrived(t)))
            timed.append((update.closed_s(group), 2, GroupClosed(played)))
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

    async def accumulate(
        self, trajectories: Sequence[Trajectory], coefficients: Sequence[float]
    ) -> None:
        shares = split(trajectories, self._ranks)
        cost = self._costs.accumulate
        self._batch.now_s += max(cost.seconds(padded_tokens(s)) for s in shares if s)

    async def capture(self, trajectories: Sequence[Trajectory]) -> None:
        """One pass per (group, reward), one per trajectory while its reward is unknown."""
        took_s: list[float] = []
        for share in split(alike_together(trajectories), self._ranks):
            known = {t.trajectory_id: t for t in share}
            took_s.append(0.0)
            for part in parts(share):
                rows = [known[i] for i in part.trajectory_ids]
                seconds = self._costs.capture.seconds(padded_tokens(rows))
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


@dataclass(frozen=True)
class Prediction:
    """One update at one rung: seconds from its batch's start to the optimizer step, the most ledger
    buffers held, seconds of captures that added nothing."""

    end_s: float
    buffers: int
    wasted_s: float


def predict(
    play: Play,
    run: Run,
    update: UpdateTimings,
    release: Release,
    costs: Costs,
    buffers_per_group: int = 2,
) -> Prediction:
    """Play a recorded update at `release`. `play` awaits the verbs of the imagined parts only,
    which never suspend."""
    batch = ImaginedBatch(update)
    learner = ImaginedLearner(batch, costs, buffers_per_group, run.matters(0.0), run.ranks)
    imagined: Any = ImaginedRun(run, learner)
    coroutine = cast(Any, play(imagined, batch, release))
    try:
        coroutine.send(None)
    except StopIteration:
        end_s = max(batch.now_s, update.last_event_s) - update.started_s
        return Prediction(end_s, learner.buffers_peak, learner.wasted_s)
    raise RuntimeError("the schedule awaits something else than its batch and its learner")


def buffers_per_group(config: Config) -> int:
    """How many ledger buffers a group can fill: two where the affine form serves it."""
    affine = config.ledger.form != "bucket" and ESTIMATORS[config.objective.estimator].affine
    return 2 if affine else config.rollout.group_size


@dataclass(frozen=True)
class Choice:
    """A rung, and why in one line with the figures behind it."""

    release: Release
    why: str


def earliest(fitting: Sequence[Release], ends_s: Mapping[Release, float]) -> Release:
    """The first of `fitting` (what holds less comes first) that ends earliest, but for a tie."""
    best_s = min(ends_s[r] for r in fitting)
    return next(r for r in fitting if ends_s[r] <= best_s * (1 + TIE))


def choose(play: Play, run: Run, buffers: int = 2) -> Choice:
    """The rung for the next batch; `buffers` is the most that a group can fill."""
    updates, costs = run.timings.updates[-LOOK_BACK:], run.timings.costs()
    if not updates or costs is None:
        return Choice(START, f"release={START} to start with: no backward pass was measured yet")
    found = {r: [predict(play, run, u, r, costs, buffers) for u in updates] for r in LADDER}
    held = {r: max(p.buffers for p in found[r]) * (updates[-1].buffer_bytes or 0) for r in LADDER}
    free = updates[-1].free_bytes
    fitting: list[Release] = [r for r in LADDER if free is None or held[r] <= FREE_SHARE * free]
    ends_s: dict[Release, float] = {r: statistics.fmean(p.end_s for p in found[r]) for r in LADDER}
    release = earliest(fitting, ends_s)
    refused = [r for r in LADDER if r not in fitting]
    wasted = statistics.fmean(p.wasted_s for p in found[release])
    memory = f"ledgers up to {held[release] / 1e6:.0f} MB" + (
        f" of {free / 1e6:.0f} MB free" if free is not None else ""
    )
    predicted = ", ".join(f"{r} {ends_s[r]:.2f}" for r in LADDER)
    return Choice(
        release,
        f"release={release}: predicted seconds to the step {predicted} (mean of the last "
        f"{len(updates)}); {_measured(run, updates, costs)}, {wasted:.2f} s of captures wasted, "
        + memory
        + (f"; does not fit: {', '.join(refused)}" if refused else ""),
    )


def _measured(run: Run, updates: Sequence[UpdateTimings], costs: Costs) -> str:
    """What the choice rests on."""
    correlations = [c for u in updates if (c := u.arrival_correlation) is not None]
    submitted = [t for u in updates for t in u.trajectories if t.end == "submit"]
    verify_s = [t.reward_s - t.finished_s for t in submitted]
    groups = [g for u in updates for g in u.groups]
    silent = sum(not run.coefficients(g) for g in groups) / len(groups)
    correlation = f"{statistics.fmean(correlations):.2f}" if correlations else "-"
    verification = f"{statistics.fmean(verify_s):.2f} s" if verify_s else "-"
    return (
        f"arrival correlation {correlation}, pass {costs.capture.pass_s * 1e3:.1f} ms + "
        f"{costs.capture.token_s * 1e6:.0f} us a token, verification {verification}, "
        f"{silent:.0%} of groups without a signal"
    )
