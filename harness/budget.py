"""Matched budgets: what is counted, and when it is spent.

A budget counts training only: the clock runs from the first batch to the last update and is paused
during parity checks; evaluation, set-up and warm start are outside. No new batch starts once the
budget is spent. A time budget that ends inside a batch ends the batch: it is discarded and its cost
counts (design.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.config import BudgetConfig
from harness.protocols import Clock


class BudgetEnded(Exception):
    """Raised into the schedule at the end of a time budget, where it waits for its batch's
    events."""


@dataclass
class Counters:
    """What training has used so far; times in seconds on the run's clock."""

    updates: int = 0
    trajectories: int = 0
    tokens: int = 0
    started_s: float | None = None
    ended_s: float | None = None
    pauses_s: list[tuple[float, float]] = field(default_factory=list)


class Budget:
    """`kind` is updates, trajectories, tokens (generated), wall_clock_s or device_s; device seconds
    are devices x seconds, whether or not a device was busy."""

    def __init__(self, config: BudgetConfig, devices: int, clock: Clock) -> None:
        self.kind = config.kind
        self.limit = config.limit
        self.counters = Counters()
        self._devices = devices
        self._clock = clock

    def start(self) -> None:
        """Training begins now (first call only)."""
        if self.counters.started_s is None:
            self.counters.started_s = self._clock.now()

    def end(self) -> None:
        """Training is over: what follows is not counted."""
        if self.counters.ended_s is None:
            self.counters.ended_s = self._clock.now()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is no training: a parity check."""
        started_s = self._clock.now()
        try:
            yield
        finally:
            self.counters.pauses_s.append((started_s, self._clock.now()))

    def windows(self, from_s: float, to_s: float) -> list[tuple[float, float]]:
        """[from_s, to_s] of the run's clock without the pauses in it."""
        found = []
        for pause_start_s, pause_end_s in self.counters.pauses_s:
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

    @property
    def remaining_s(self) -> float | None:
        """Seconds until a time budget ends; None for the others."""
        if self.kind == "wall_clock_s":
            return max(0.0, self.limit - self.elapsed_s)
        if self.kind == "device_s":
            return max(0.0, self.limit / self._devices - self.elapsed_s)
        return None
