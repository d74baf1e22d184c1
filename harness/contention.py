"""Cores that engine, learner and sandboxes share in virtual time: work goes on at the speed that
whoever else is at work leaves it, and whoever works is told when that changes."""

from __future__ import annotations

from collections.abc import Callable

from harness.virtual import Future, Timer, VirtualClock

# (threads of the engine, threads of the learner, sandboxes at work) -> factor, at least 1
Contention = Callable[[float, float, float], float]


class Cores:
    """`factor` is what work takes longer than alone, at this moment."""

    def __init__(
        self, contention: Contention, clock: VirtualClock, engine_threads: int, learner_threads: int
    ) -> None:
        self._contention, self._clock = contention, clock
        self._threads = engine_threads, learner_threads
        self._engines = self._learners = self._sandboxes = 0
        self._listeners: list[Callable[[], None]] = []
        self._told: Timer | None = None
        self.factor = 1.0

    def listen(self, changed: Callable[[], None]) -> None:
        """Call this once for each moment at which the factor has changed."""
        self._listeners.append(changed)

    def engine(self, more: int) -> None:
        """A replica begins (1) or ends (-1) to work."""
        self._engines += more
        self._change()

    def learner(self, more: int) -> None:
        """All of the learner's threads begin or end to work."""
        self._learners += more
        self._change()

    def sandbox(self, more: int) -> None:
        """A sandbox begins or ends to work."""
        self._sandboxes += more
        self._change()

    def _change(self) -> None:
        engine, learner = self._threads
        factor = self._contention(
            engine * bool(self._engines), learner * bool(self._learners), self._sandboxes
        )
        if factor != self.factor:
            self.factor = factor
            if self._told is None:  # many change at one moment: they are told once
                self._told = self._clock.call_at(self._clock.time_s, self._tell)

    def _tell(self) -> None:
        self._told = None
        for changed in self._listeners:
            changed()


class Workbench:
    """One piece of work at a time, which takes its seconds times the factor of every moment."""

    def __init__(self, cores: Cores, clock: VirtualClock) -> None:
        self._cores, self._clock = cores, clock
        self._left_s = self._seen_s = 0.0
        self._factor = 1.0
        self._timer: Timer | None = None
        self._done: Future[None] | None = None
        cores.listen(self._changed)

    async def work(self, seconds: float) -> None:
        """Returns once so many seconds of work alone are done."""
        self._cores.learner(1)
        try:
            self._left_s = seconds
            self._done = Future(self._clock)
            self._plan()
            await self._done
        finally:
            self._done = None
            if self._timer is not None:
                self._timer.cancel()
            self._cores.learner(-1)

    def _changed(self) -> None:
        if self._done is not None and self._timer is not None:
            self._timer.cancel()
            self._left_s -= (self._clock.time_s - self._seen_s) / self._factor
            self._plan()

    def _plan(self) -> None:
        self._seen_s, self._factor = self._clock.time_s, self._cores.factor
        end_s = self._seen_s + max(0.0, self._left_s) * self._factor
        self._timer = self._clock.call_at(end_s, self._end)

    def _end(self) -> None:
        self._timer = None
        if self._done is not None:
            self._done.set(None)
