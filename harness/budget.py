"""Matched budgets: what is counted, and when it is spent.

A budget counts training only: the clock runs from the first batch to the last update, and
evaluation, set-up, warm start and parity checks are outside. No new batch starts once the budget is
spent. A time budget that ends inside a batch ends the batch: it is discarded and its cost counts
(design.md).
"""

from __future__ import annotations

from dataclasses import dataclass

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

    @property
    def elapsed_s(self) -> float:
        counters = self.counters
        if counters.started_s is None:
            return 0.0
        now = self._clock.now() if counters.ended_s is None else counters.ended_s
        return now - counters.started_s

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
