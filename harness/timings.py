"""What updates measured: when trajectories arrived and what backward passes cost. Torch-free.

The raw material of `overlap_efficiency` (harness/overlap.py) and of `schedule.release=auto`.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.protocols import Group, Interval, Release, Trajectory, TurnCosts
from harness.sequences import padded

PASSES = ("capture", "accumulate")
TURN_PASSES = ("extend", "finish")  # of one trajectory each, which together are one pass
KEPT_UPDATES = 8  # a fit forgets what is older: a first update's cold caches, another neighbour


@dataclass(frozen=True)
class PassCost:
    """Seconds of one backward pass: `pass_s` + `token_s` x padded tokens."""

    pass_s: float
    token_s: float

    def seconds(self, padded: int) -> float:
        return self.pass_s + self.token_s * padded


def fit(passes: Sequence[tuple[int, float]]) -> PassCost | None:
    """Least squares over (padded tokens, seconds), neither term below 0; None of nothing. The
    fitted seconds sum to the measured ones, so that a run's own passes are never made cheaper."""
    if not passes:
        return None
    tokens, seconds = zip(*passes, strict=True)
    mean_tokens, mean_s = statistics.fmean(tokens), statistics.fmean(seconds)
    spread = sum((n - mean_tokens) ** 2 for n in tokens)
    if not mean_tokens:
        return PassCost(mean_s, 0.0)
    if not spread:
        return PassCost(0.0, mean_s / mean_tokens)
    slope = sum((n - mean_tokens) * (s - mean_s) for n, s in passes) / spread
    if slope < 0:
        return PassCost(mean_s, 0.0)
    if mean_s < slope * mean_tokens:
        return PassCost(0.0, mean_s / mean_tokens)
    return PassCost(mean_s - slope * mean_tokens, slope)


@dataclass(frozen=True)
class Costs:
    """What the learner's verbs cost, in seconds; `turns` is None where that was not measured."""

    accumulate: PassCost
    capture: PassCost
    fold_s: float
    turns: TurnCosts | None = None


@dataclass(frozen=True)
class UpdateTimings:
    """One finished update. Trajectories carry their arrival times; `started_s`, `last_event_s` and
    they are seconds on the run's clock, `step_s` is from `started_s` to the optimizer step, parity
    checks left out. `intervals` are the learner's. A ledger buffer takes `buffer_bytes`;
    `free_bytes` is what was left where ledgers lie (both None where the learner cannot say)."""

    groups: Sequence[Group]
    started_s: float
    last_event_s: float
    step_s: float
    intervals: Sequence[Interval]
    release: Release | None
    buffer_bytes: int | None = None
    free_bytes: int | None = None
    turn_costs: TurnCosts | None = None

    @property
    def trajectories(self) -> list[Trajectory]:
        return [t for group in self.groups for t in group.trajectories]

    @property
    def learners(self) -> int:
        return max(1, len({i.resource for i in self.intervals}))

    def closed_s(self, group: Group) -> float:
        """When the group's last reward arrived, on the run's clock."""
        return max((t.reward_s for t in group.trajectories), default=self.last_event_s)

    @property
    def arrival_correlation(self) -> float | None:
        """Intraclass correlation of arrival times (rewards) within groups, one-way ANOVA: 1 where
        a group arrives at one moment, around 0 where groups do not matter. None where that cannot
        be told."""
        samples = [[t.reward_s for t in g.trajectories] for g in self.groups if g.trajectories]
        count, groups = sum(map(len, samples)), len(samples)
        if groups < 2 or count <= groups:
            return None
        mean = statistics.fmean(s for sample in samples for s in sample)
        centres = [statistics.fmean(sample) for sample in samples]
        between = sum(len(x) * (c - mean) ** 2 for x, c in zip(samples, centres, strict=True))
        within = sum((s - c) ** 2 for x, c in zip(samples, centres, strict=True) for s in x)
        size = (count - sum(len(x) ** 2 for x in samples) / count) / (groups - 1)
        between, within = between / (groups - 1), within / (count - groups)
        scale = between + (size - 1) * within
        return (between - within) / scale if scale else None

    def passes(self, names: Iterable[str]) -> list[tuple[int, float]]:
        """(padded tokens, seconds) of the backward passes of these names."""
        wanted = set(names)
        return [(i.args["padded"], i.end_s - i.start_s) for i in self.intervals if i.name in wanted]

    def by_turns(self) -> list[tuple[int, float]]:
        """(padded tokens, seconds) of trajectories that were passed turn by turn: all of it, or
        what a whole pass takes where that is known (`whole_s`)."""
        took_s: dict[str, float] = {}
        padded_of: dict[str, int] = {}
        for interval in self.intervals:
            if interval.name not in TURN_PASSES:
                continue
            pass_s = interval.args.get("whole_s", interval.end_s - interval.start_s)
            for name in interval.args.get("trajectories", ()):  # one; a simulated turn tells none
                took_s[name] = took_s.get(name, 0.0) + pass_s
                if interval.name == "finish":
                    padded_of[name] = interval.args["padded"]
        return [(tokens, took_s[name]) for name, tokens in padded_of.items()]

    def measured_s(self) -> dict[str, float]:
        """Trajectory id -> its share of the measured passes: rows of one pass are padded to one
        length, and share it equally."""
        shares: dict[str, float] = {}
        for interval in self.intervals:
            if interval.name in PASSES:
                ids = interval.args["trajectories"]
                for name in ids:
                    share = (interval.end_s - interval.start_s) / len(ids)
                    shares[name] = shares.get(name, 0.0) + share
        return shares


class History:
    """The last updates of one run, oldest first, and the costs fitted to their passes.

    `separate`: a capture costs more than an accumulation of the same size (reward-independent terms
    take a backward of their own), so that each is fitted to its own passes where there are any.
    """

    def __init__(self, separate: bool = False) -> None:
        self._separate = separate
        self._updates: deque[UpdateTimings] = deque(maxlen=KEPT_UPDATES)

    def add(self, update: UpdateTimings) -> None:
        self._updates.append(update)

    def restore(self, updates: Iterable[UpdateTimings]) -> None:
        """In place of what is kept."""
        self._updates.clear()
        self._updates.extend(updates)

    @property
    def updates(self) -> list[UpdateTimings]:
        return list(self._updates)

    def costs(self) -> Costs | None:
        """Fitted to what is kept; None before the first backward pass. Where all trajectories were
        passed turn by turn, a pass is what one of them took in all."""
        pooled = self._fit(*PASSES) or fit([p for u in self._updates for p in u.by_turns()])
        if pooled is None:
            return None
        folds = [
            i.end_s - i.start_s for u in self._updates for i in u.intervals if i.name == "fold"
        ]
        own = {name: (self._fit(name) if self._separate else None) or pooled for name in PASSES}
        turns = next((u.turn_costs for u in self._updates if u.turn_costs is not None), None)
        fold_s = statistics.fmean(folds) if folds else 0.0
        return Costs(own["accumulate"], own["capture"], fold_s, turns)

    def _fit(self, *names: str) -> PassCost | None:
        return fit([p for update in self._updates for p in update.passes(names)])


def packed_s(chunks: Iterable[Sequence[Trajectory]], cost: PassCost) -> Mapping[str, float]:
    """Trajectory id -> seconds of its share of a packing's passes."""
    return {
        t.trajectory_id: cost.seconds(padded(chunk)) / len(chunk) for chunk in chunks for t in chunk
    }
