"""The timeline of a run of any length in memory that does not grow with it.

What the run's figures need is kept in sums and in merged intervals; the trace shows the first so
many intervals and instants, and says how many it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from harness.accounting import ALIVE, EXCHANGE
from harness.protocols import Interval
from harness.timeline import STATES, Timeline, Window, blocked, length_s, overlap_s, union

TRACE = 50_000  # intervals, and as many instants
_SANDBOX = "sandbox/"
_MERGE_S = 1e-9


class CompactTimeline(Timeline):
    """`intervals` are those of engines and learners, merged where one begins as another ends, every
    exchange of weights, and the times at which any trajectory was alive. Sandboxes' seconds are
    added up as they come, inside `windows`, which must not shrink. Engines, learners and exchanges
    come in the order of time for each."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(0.0, now)
        self.windows: Callable[[], Sequence[Window]] = list
        self._trace: list[Interval] = []
        self._left_out = 0
        self._merged: dict[str, list[Interval]] = {}
        self._alive: list[Window] = []
        self._names: set[str] = set()
        self._busy_s = self._held_s = 0.0

    def add(self, interval: Interval) -> None:
        self.extend([interval])

    def extend(self, intervals: Iterable[Interval]) -> None:
        inside = union(self.windows())
        alive: list[Window] = []
        for interval in intervals:
            if len(self._trace) < TRACE:
                self._trace.append(interval)
            else:
                self._left_out += 1
            window = interval.start_s, interval.end_s
            if interval.resource.startswith(_SANDBOX):
                self._names.add(interval.resource)
                self._busy_s += overlap_s([window], inside)
            elif interval.name == ALIVE:
                alive.append(window)
                if interval.resource.startswith(blocked(_SANDBOX)):
                    self._names.add(interval.resource.removeprefix(blocked("")))
                    self._held_s += overlap_s([window], inside)
            else:
                self._merge(interval)
        self._alive = union([*self._alive, *alive])
        lived = (Interval("alive", ALIVE, start, end) for start, end in self._alive)
        self.intervals = [i for merged in self._merged.values() for i in merged]
        self.intervals += lived

    def _merge(self, interval: Interval) -> None:
        before = self._merged.setdefault(interval.resource, [])
        last = before[-1] if before else None
        if last is None or EXCHANGE in (last.name, interval.name):
            joined = False
        else:
            joined = interval.start_s <= last.end_s + _MERGE_S
        made = interval.args.get("generated_tokens")
        if last is None or not joined:
            before.append(
                replace(interval, args={} if made is None else {"generated_tokens": made})
            )
            return
        args = dict(last.args)
        if made is not None:
            args["generated_tokens"] = args.get("generated_tokens", 0) + made
        before[-1] = replace(last, end_s=max(last.end_s, interval.end_s), args=args)

    def instant(self, track: str, name: str, *, at_s: float | None = None, **args: Any) -> None:
        if len(self._instants) < TRACE:
            super().instant(track, name, at_s=at_s, **args)
        else:
            self._left_out += 1

    def resources(self, kind: str) -> list[str]:
        if kind == "sandbox":
            return sorted(self._names)
        if kind == blocked("sandbox"):
            return [blocked(name) for name in sorted(self._names)]
        return super().resources(kind)

    def shares(
        self, resources: Sequence[str], windows: Iterable[Window]
    ) -> dict[str, float | None]:
        """Of sandboxes over the windows that their seconds were added up in."""
        if not resources or not self._names.issuperset(resources):
            return super().shares(resources, windows)
        available_s = length_s(union(windows)) * len(resources)
        if available_s <= 0:
            return dict.fromkeys(STATES)
        seconds = (self._busy_s, self._held_s - self._busy_s, available_s - self._held_s)
        return {state: max(0.0, s / available_s) for state, s in zip(STATES, seconds, strict=True)}

    def traced(self) -> Sequence[Interval]:
        return self._trace

    def remarks(self) -> dict[str, Any]:
        return {"clock": "VIRTUAL", "events_left_out": self._left_out}
