"""Matched budgets: what is counted, and when it is spent.

A budget counts training only: the clock runs from the first batch to the last update and is paused
during parity checks and while a snapshot is kept; evaluation, set-up and warm start are outside.
One rule for every schedule (docs/budgets.md):

* Nothing new starts once the budget is spent.
* A budget that is reached while something is under way ends it at once: what no update was made of
  is discarded, and its cost counts (`discarded`). A budget of trajectories or tokens goes on only
  where the trajectory that reached it is the last one that can spend at all: then it may end, and
  the update is made. So no more is spent than the limit and one trajectory.
* A time budget is asked once more before an update is published.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.config import BudgetConfig
from harness.protocols import (
    Clock,
    Event,
    Group,
    GroupClosed,
    Interval,
    RewardArrived,
    TrajectoryFinished,
    TrajectoryLost,
    TurnFinished,
    TurnGenerated,
)

_WAY_OUT = "raise it, or lower rollout.group_size or rollout.groups_per_batch"
Life = tuple[int, int, int]
"""Group, index and attempt of a trajectory."""


class BudgetEnded(Exception):
    """Raised into the schedule at the end of its budget, where it waits for events."""


@dataclass
class Counters:
    """What training has used so far; times in seconds on the run's clock."""

    updates: int = 0
    trajectories: int = 0
    tokens: int = 0
    started_s: float | None = None
    ended_s: float | None = None
    pauses_s: list[tuple[float, float]] = field(default_factory=list)
    paused_s: dict[str, float] = field(default_factory=dict)  # by reason


@dataclass
class _Share:
    """What a group has used that no update was made of yet. `tokens` are those of each of its
    lives, up to its last finished turn."""

    size: int
    judged: int = 0
    lost: int = 0  # for good
    tokens: Counter[Life] = field(default_factory=Counter)


class Budget:
    """`kind` is updates, trajectories (judged), tokens (generated, counted as a turn ends),
    wall_clock_s or device_s; device seconds are devices x seconds, whether or not a device was
    busy."""

    def __init__(self, config: BudgetConfig, devices: int, clock: Clock) -> None:
        self.kind = config.kind
        self.limit = config.limit
        self.counters = Counters()
        self.over = False
        """What was under way has been ended: what happens from now on is not counted."""
        self._devices = devices
        self._clock = clock
        self._shares: dict[int, _Share] = {}
        self._spending: dict[tuple[int, int], int] = {}  # (group, index) -> attempt
        self._reached_by: Life | None = None
        self._updated_s = 0.0
        self._pausing_s = math.inf  # since when
        self._fail: Callable[[BaseException], None] = lambda error: None

    def start(self) -> None:
        """Training begins now (first call only)."""
        if self.counters.started_s is None:
            self.counters.started_s = self._clock.now()

    def end(self) -> None:
        """Training is over: what follows is not counted."""
        if self.counters.ended_s is None:
            self.counters.ended_s = self._clock.now()

    @contextlib.contextmanager
    def paused(self, reason: str = "parity") -> Iterator[None]:
        """What happens inside is no training: a parity check, or keeping a snapshot."""
        self._pausing_s = started_s = self._clock.now()
        try:
            yield
        finally:
            self._pausing_s = math.inf
            now = self._clock.now()
            if now > started_s:  # in virtual time a checkpoint takes none
                self.counters.pauses_s.append((started_s, now))
            before_s = self.counters.paused_s.get(reason, 0.0)
            self.counters.paused_s[reason] = before_s + now - started_s

    # -- what is under way -------------------------------------------------------------------------

    def reaches(self, fail: Callable[[BaseException], None]) -> None:
        """Where the end of a budget of trajectories or tokens is to be told: `fail` of the newest
        batch, or of a flow."""
        self._fail = fail

    def opened(self, group: int, trajectories: int) -> None:
        """A group of so many trajectories starts."""
        self._shares[group] = _Share(trajectories)
        self._spending |= {(group, index): 0 for index in range(trajectories)}

    def count(self, event: Event) -> None:
        """Add what an event costs; tells `reaches` when that ends what is under way."""
        if self.over or isinstance(event, (GroupClosed, TurnGenerated)):
            return
        trajectory = event.trajectory
        place = trajectory.group, trajectory.index
        life = *place, trajectory.attempt
        share = self._shares[trajectory.group]
        if isinstance(event, TurnFinished):
            turn = trajectory.turns[event.turn]
            self._add_tokens(share, life, turn.action_end - turn.action_start)
        elif isinstance(event, TrajectoryFinished):
            if self.kind == "tokens":  # its verifier spends none
                self._spending.pop(place, None)
        elif isinstance(event, RewardArrived):
            self._spending.pop(place, None)
            share.judged += 1
            self.counters.trajectories += 1
        elif isinstance(event, TrajectoryLost):
            self._add_tokens(share, life, trajectory.action_tokens - share.tokens[life])
            self._spending[place] = trajectory.attempt + 1  # it starts again, unless
            if event.final:
                share.lost += 1
                self._spending.pop(place)
        if self.kind in ("trajectories", "tokens") and self.exhausted:
            self._reached_by = self._reached_by or life
            alive = {(*place, attempt) for place, attempt in self._spending.items()}
            if alive - {self._reached_by}:
                self.over = True
                self._fail(self.ended())

    def _add_tokens(self, share: _Share, life: Life, tokens: int) -> None:
        share.tokens[life] += tokens
        self.counters.tokens += tokens

    def ended(self) -> BudgetEnded:
        return BudgetEnded(f"budget.{self.kind}={self.limit:g} is spent")

    def updated(self, groups: Iterable[Group]) -> None:
        """An update was made of these groups, and is published."""
        self.counters.updates += 1
        self._updated_s = self.elapsed_s
        for group in groups:
            self._shares.pop(group.group, None)

    @property
    def discarded(self) -> dict[str, float]:
        """What was spent on groups that no update was made of: judged trajectories, those still
        under way (`unfinished`), tokens of finished turns, and seconds since the last update, which
        other groups may share."""
        shares = self._shares.values()
        return {
            "trajectories": sum(share.judged for share in shares),
            "unfinished": sum(share.size - share.judged - share.lost for share in shares),
            "tokens": sum(share.tokens.total() for share in shares),
            "seconds": self.elapsed_s - self._updated_s if shares else 0.0,
        }

    def shortfall(self, trajectories: int) -> str | None:
        """Why no update can come of this budget, where that is known: the first takes so many
        trajectories, each of at least one token."""
        if self.kind in ("trajectories", "tokens") and self.limit < trajectories:
            return (
                f"WARNING: budget.limit={self.limit:g} {self.kind} cannot make one update, which "
                f"takes {trajectories} trajectories; {_WAY_OUT}"
            )
        return None

    def without_update(self) -> str | None:
        """A line for a run that made no update at all."""
        if self.counters.updates or not (self.over or self.exhausted):
            return None
        return (
            f"WARNING: budget.limit={self.limit:g} {self.kind} was spent before the first update: "
            f"nothing was learnt; {_WAY_OUT}"
        )

    def state(self) -> dict[str, Any]:
        """For a checkpoint at the end of an update: what is under way is taken out, as its finished
        trajectories are counted again when they are handed over again."""
        counted = asdict(self.counters)
        counted["trajectories"] -= sum(share.judged for share in self._shares.values())
        counted["tokens"] -= sum(share.tokens.total() for share in self._shares.values())
        return {"counters": counted, "updated_s": self._updated_s}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.counters = Counters(**state["counters"])
        self.counters.pauses_s = [(start, end) for start, end in self.counters.pauses_s]
        self._updated_s = state["updated_s"]

    # -- what was spent ----------------------------------------------------------------------------

    def windows(self, from_s: float, to_s: float) -> list[tuple[float, float]]:
        """[from_s, to_s] of the run's clock without the pauses in it."""
        found = []
        pauses_s = [*self.counters.pauses_s, (self._pausing_s, math.inf)]
        for pause_start_s, pause_end_s in pauses_s:
            if from_s < pause_end_s and pause_start_s < to_s:
                found.append((from_s, pause_start_s))
                from_s = pause_end_s
        return [(start, end) for start, end in [*found, (from_s, to_s)] if end > start]

    def between_s(self, from_s: float, to_s: float) -> float:
        """Seconds of training between two times."""
        return sum(end - start for start, end in self.windows(from_s, to_s))

    @property
    def training(self) -> list[tuple[float, float]]:
        """The budget's windows on the run's clock; none before training has begun."""
        counters = self.counters
        if counters.started_s is None:
            return []
        now = self._clock.now() if counters.ended_s is None else counters.ended_s
        return self.windows(counters.started_s, now)

    @property
    def elapsed_s(self) -> float:
        return sum(end - start for start, end in self.training)

    @property
    def spent(self) -> float:
        """In the budget's own unit."""
        counters = self.counters
        return {
            "updates": counters.updates,
            "trajectories": counters.trajectories,
            "tokens": counters.tokens,
            "wall_clock_s": self.elapsed_s,
            "device_s": self.elapsed_s * self._devices,
        }[self.kind]

    @property
    def exhausted(self) -> bool:
        return self.spent >= self.limit

    def updates_left(self, trajectories: int) -> int | None:
        """How many a budget of updates or trajectories can still pay, each of so many trajectories
        (at least one is tried); None where that is not known."""
        left = self.limit - self.spent
        if self.kind == "updates":
            return max(0, math.ceil(left))
        return max(1, int(left // trajectories)) if self.kind == "trajectories" else None

    @property
    def remaining_s(self) -> float | None:
        """Seconds until a time budget ends; None for the others."""
        if self.kind == "wall_clock_s":
            return max(0.0, self.limit - self.elapsed_s)
        if self.kind == "device_s":
            return max(0.0, self.limit / self._devices - self.elapsed_s)
        return None


def uncounted_tokens(intervals: Iterable[Interval], counted: int) -> int | None:
    """Tokens that the engine made and no budget counted: in turns that had not finished when the
    rollouts were ended. None where the engine does not say how many it made."""
    made = [i.args["generated_tokens"] for i in intervals if "generated_tokens" in i.args]
    return max(0, sum(made) - counted) if made else None
