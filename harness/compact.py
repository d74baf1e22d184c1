"""The timeline of a run of any length in memory that does not grow with its trajectories.

What the run's figures need is kept in sums and in merged intervals; the trace shows the first so
many intervals and instants, and says how many it leaves out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from harness.accounting import ALIVE, ENGINE, EXCHANGE
from harness.protocols import Interval
from harness.timeline import STATES, Timeline, Window, blocked, length_s, overlap_s, union

TRACE = 50_000  # intervals, and as many instants
_MERGE_S = 1e-9
_BLOCKED = blocked("")


class CompactTimeline(Timeline):
    """Seconds of engines and sandboxes are added up as they come, inside `windows`, which may only
    grow at their end. `intervals` are those of learners, merged where one begins as another ends,
    every exchange of weights, one for each engine with the tokens that it made, and the times at
    which any trajectory was alive.

    What comes in one `extend` is worked up at once: an engine's intervals must be disjoint, a
    sandbox's work must lie in its life."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(0.0, now)
        self.windows: Callable[[], Sequence[Window]] = list
        self._trace: list[Interval] = []
        self._left_out = 0
        self._merged: dict[str, list[Interval]] = {}
        self._engines: dict[str, Interval] = {}
        self._exchanges: list[Interval] = []
        self._alive: list[Window] = []
        self._lives: list[Window] = []  # not in `_alive` yet
        self._busy_s: defaultdict[str, float] = defaultdict(float)
        self._held_s: defaultdict[str, float] = defaultdict(float)
        self._sandboxes: set[str] = set()

    @property
    def intervals(self) -> Sequence[Interval]:
        self._alive, self._lives = union([*self._alive, *self._lives]), []
        return [
            *(i for merged in self._merged.values() for i in merged),
            *self._exchanges,
            *self._engines.values(),
            *(Interval("alive", ALIVE, start, end) for start, end in self._alive),
        ]

    def add(self, interval: Interval) -> None:
        self.extend([interval])

    def extend(self, intervals: Iterable[Interval]) -> None:
        inside = union(self.windows())
        for interval in intervals:
            if len(self._trace) < TRACE:
                self._trace.append(interval)
            else:
                self._left_out += 1
            self._take(interval, inside)
        if len(self._lives) > TRACE:
            self._alive, self._lives = union([*self._alive, *self._lives]), []

    def _take(self, interval: Interval, inside: Sequence[Window]) -> None:
        name, start_s, end_s = interval.resource, interval.start_s, interval.end_s
        resource = name.removeprefix(_BLOCKED)
        if len(inside) == 1:  # always, but for pauses
            ((from_s, to_s),) = inside
            seconds = max(0.0, min(end_s, to_s) - max(start_s, from_s))
        else:
            seconds = overlap_s([(start_s, end_s)], inside)
        if interval.name == ALIVE:
            self._lives.append((start_s, end_s))
            self._held_s[resource] += seconds
            self._sandboxes.add(resource)
        elif resource.startswith("sandbox/"):
            self._busy_s[resource] += seconds
            self._sandboxes.add(resource)
        elif interval.name == EXCHANGE:
            if end_s > start_s or resource == ENGINE:  # whose exchanges tell one version's end
                self._exchanges.append(interval)
        elif name.startswith("engine/"):
            self._busy_s[name] += seconds
            self._engine(interval)
        else:
            self._merge(interval)

    def _engine(self, interval: Interval) -> None:
        """One interval for all, without a length: nobody may read times from it."""
        known = self._engines.get(interval.resource)
        if known is None:
            args = {"generated_tokens": 0}
            known = replace(interval, start_s=0.0, end_s=0.0, args=args)
            self._engines[interval.resource] = known
        args = known.args
        assert isinstance(args, dict)
        args["generated_tokens"] += interval.args.get("generated_tokens", 0)

    def _merge(self, interval: Interval) -> None:
        before = self._merged.setdefault(interval.resource, [])
        if before and interval.start_s <= before[-1].end_s + _MERGE_S:
            end_s = max(before[-1].end_s, interval.end_s)
            before[-1] = replace(before[-1], end_s=end_s)
        else:
            before.append(replace(interval, args={}))

    def instant(self, track: str, name: str, *, at_s: float | None = None, **args: Any) -> None:
        if len(self._instants) < TRACE:
            super().instant(track, name, at_s=at_s, **args)
        else:
            self._left_out += 1

    # -- figures -----------------------------------------------------------------------------------

    def resources(self, kind: str) -> list[str]:
        if kind == "sandbox":
            return sorted(self._sandboxes)
        if kind == blocked("sandbox"):
            return [blocked(name) for name in sorted(self._sandboxes)]
        return super().resources(kind)

    def busy_s(self, resources: Sequence[str], windows: Iterable[Window]) -> float:
        """Of engines and sandboxes over the windows that their seconds were added up in."""
        inside, total_s = union(windows), 0.0
        for name in resources:
            if name.startswith("learner/"):
                worked = [(i.start_s, i.end_s) for i in self._merged.get(name, ())]
                total_s += overlap_s(union(worked), inside)
            else:
                total_s += self._busy_s[name]
        return total_s

    def busy_together_s(self, one: str, other: str, windows: Iterable[Window]) -> float:
        """Engine and learner share devices only where they take turns."""
        return self.busy_s([one, other], windows)

    def shares(
        self, resources: Sequence[str], windows: Iterable[Window]
    ) -> dict[str, float | None]:
        if not resources or resources[0].startswith("learner/"):
            return super().shares(resources, windows)
        inside = union(windows)
        available_s = length_s(inside) * len(resources)
        if available_s <= 0:
            return dict.fromkeys(STATES)
        busy_s = self.busy_s(resources, inside)
        held_s = sum(self._held_s[name] for name in resources)
        if resources[0].startswith("engine/"):
            held_s = busy_s + self._exchanging_s(resources, inside)
        seconds = (busy_s, held_s - busy_s, available_s - held_s)
        return {state: max(0.0, s / available_s) for state, s in zip(STATES, seconds, strict=True)}

    def _exchanging_s(self, engines: Sequence[str], inside: Sequence[Window]) -> float:
        """Seconds of exchanges. An engine that still decodes meanwhile is busy: that part is not
        known any more, and counts as neither more nor less than what is left of its time."""
        tracks = self.unions([blocked(name) for name in engines])
        return sum(
            min(overlap_s(track, inside), length_s(inside) - self._busy_s[name])
            for name, track in zip(engines, tracks.values(), strict=True)
        )

    # -- the trace ---------------------------------------------------------------------------------

    def traced(self) -> Sequence[Interval]:
        return self._trace

    def remarks(self) -> dict[str, Any]:
        return {"clock": "VIRTUAL", "events_left_out": self._left_out}
