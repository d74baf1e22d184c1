"""The timeline of a run of any length in memory that does not grow with its trajectories.

What the run's figures need is kept in sums and in merged intervals; the trace shows the first so
many intervals and instants, and says how many it leaves out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.accounting import ALIVE, ENGINE, EXCHANGE
from harness.protocols import Interval
from harness.timeline import STATES, Timeline, Window, blocked, length_s, overlap_s, plain, union

TRACE = 50_000  # intervals, and as many instants
_BLOCKED = blocked("")


class _Union:
    """Windows that are merged where they touch, now and then."""

    def __init__(self, merged: Iterable[Sequence[float]] = ()) -> None:
        self._merged: list[Window] = [(start_s, end_s) for start_s, end_s in merged]
        self._new: list[Window] = []

    def add(self, start_s: float, end_s: float) -> None:
        self._new.append((start_s, end_s))
        if len(self._new) > TRACE:
            self._merge()

    def _merge(self) -> None:
        self._merged, self._new = union([*self._merged, *self._new]), []

    @property
    def windows(self) -> list[Window]:
        self._merge()
        return self._merged


class CompactTimeline(Timeline):
    """Seconds of every resource are added up as they come, inside `windows`, which may only grow at
    their end. `intervals` are the first engine's exchanges of weights, one for each engine with the
    tokens that it made, and the times at which any trajectory was alive. When any learner worked is
    known of all of them together.

    What comes in one `extend` is worked up at once: the intervals of an engine or a learner must be
    disjoint, a sandbox's work must lie in its life."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(0.0, now)
        self.windows: Callable[[], Sequence[Window]] = list
        self._trace: list[Interval] = []
        self._left_out = 0
        self._engines: dict[str, Interval] = {}
        self._exchanges: list[Interval] = []
        self._alive = _Union()
        self._learning = _Union()
        self._busy_s: defaultdict[str, float] = defaultdict(float)
        self._held_s: defaultdict[str, float] = defaultdict(float)
        self._blocked_s: defaultdict[str, float] = defaultdict(float)
        self._names: dict[str, tuple[str, str]] = {}
        """As told -> the resource, and its kind where it worked."""

    @property
    def intervals(self) -> Sequence[Interval]:
        return [
            *self._exchanges,
            *self._engines.values(),
            *(Interval("alive", ALIVE, start, end) for start, end in self._alive.windows),
        ]

    def add(self, interval: Interval) -> None:
        self.extend([interval])

    def extend(self, intervals: Iterable[Interval]) -> None:
        """A long run has tens of millions."""
        inside = union(self.windows())
        one = inside[0] if len(inside) == 1 else None  # always, but for pauses
        trace, names, busy_s = self._trace, self._names, self._busy_s
        for interval in intervals:
            if len(trace) < TRACE:
                trace.append(interval)
            else:
                self._left_out += 1
            told, start_s, end_s = interval.resource, interval.start_s, interval.end_s
            if one is None:
                seconds = overlap_s([(start_s, end_s)], inside)
            else:
                seconds = (end_s if end_s < one[1] else one[1]) - (
                    start_s if start_s > one[0] else one[0]
                )
                if seconds < 0:
                    seconds = 0.0
            known = names.get(told)
            if known is None:
                name = told.removeprefix(_BLOCKED)
                known = names[told] = name, name.split("/")[0] if name == told else ""
            resource, kind = known
            if not kind:
                self._hold(interval, resource, seconds)
                continue
            busy_s[resource] += seconds
            if kind == "engine":
                self._engine(interval)
            elif kind == "learner":
                self._learning.add(start_s, end_s)

    def _hold(self, interval: Interval, resource: str, seconds: float) -> None:
        """A life, or a time at which a resource was blocked."""
        if interval.name == ALIVE:
            self._alive.add(interval.start_s, interval.end_s)
            self._held_s[resource] += seconds
            return
        self._blocked_s[resource] += seconds
        if resource == ENGINE and interval.name == EXCHANGE:  # they tell one version's end
            self._exchanges.append(interval)

    def _engine(self, interval: Interval) -> None:
        """One interval for all, without a length: nobody may read times from it."""
        known = self._engines.get(interval.resource)
        if known is None:
            args = {"generated_tokens": 0}
            known = replace(interval, start_s=0.0, end_s=0.0, args=args)
            self._engines[interval.resource] = known
        args: Any = known.args
        args["generated_tokens"] += interval.args.get("generated_tokens", 0)

    def instant(self, track: str, name: str, *, at_s: float | None = None, **args: Any) -> None:
        if len(self._instants) < TRACE:
            super().instant(track, name, at_s=at_s, **args)
        else:
            self._left_out += 1

    # -- figures -----------------------------------------------------------------------------------

    def resources(self, kind: str) -> list[str]:
        return sorted(name for name in self._names if name.startswith(f"{kind}/"))

    def busy_s(self, resources: Sequence[str], windows: Iterable[Window]) -> float:
        """Over the windows that their seconds were added up in, whatever `windows` are."""
        return sum(self._busy_s.get(name, 0.0) for name in resources)

    def together(self, resources: Sequence[str]) -> list[Window]:
        """Of learners it is known of all of them alone."""
        others = [name for name in resources if not name.startswith("learner/")]
        learning = self._learning.windows if len(others) < len(resources) else []
        return union([*learning, *super().together(others)])

    def busy_together_s(self, one: str, other: str, windows: Iterable[Window]) -> float:
        """Engine and learner share devices only where they take turns."""
        return self.busy_s([one, other], windows)

    def shares(
        self, resources: Sequence[str], windows: Iterable[Window]
    ) -> dict[str, float | None]:
        inside = union(windows)
        available_s = length_s(inside) * len(resources)
        if available_s <= 0:
            return dict.fromkeys(STATES)
        busy_s = self.busy_s(resources, inside)
        if resources[0].startswith("sandbox/"):
            held_s = sum(self._held_s.get(name, 0.0) for name in resources)
        else:
            held_s = busy_s + self._waiting_s(resources, inside)
        seconds = (busy_s, held_s - busy_s, available_s - held_s)
        return {state: max(0.0, s / available_s) for state, s in zip(STATES, seconds, strict=True)}

    def _waiting_s(self, resources: Sequence[str], inside: Sequence[Window]) -> float:
        """Seconds of exchanges and switches. An engine that still decodes meanwhile is busy: that
        part is not known any more, and counts as neither more nor less than what is left of its
        time."""
        whole_s = length_s(inside)
        return sum(
            min(self._blocked_s.get(name, 0.0), whole_s - self._busy_s.get(name, 0.0))
            for name in resources
        )

    # -- for a checkpoint --------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "left_out": self._left_out,
            "engines": [plain(i) for i in self._engines.values()],
            "exchanges": [plain(i) for i in self._exchanges],
            "alive": self._alive.windows,
            "learning": self._learning.windows,
            "busy_s": dict(self._busy_s),
            "held_s": dict(self._held_s),
            "blocked_s": dict(self._blocked_s),
            "names": self._names,
        }

    def restore(
        self,
        state: Mapping[str, Any],
        trace: Iterable[Interval],
        instants: Iterable[tuple[str, str, float, dict[str, Any]]],
    ) -> None:
        self._trace = list(trace)
        self._instants = list(instants)
        self._left_out = state["left_out"]
        self._engines = {i[0]: Interval(*i) for i in state["engines"]}
        self._exchanges = [Interval(*i) for i in state["exchanges"]]
        self._alive, self._learning = _Union(state["alive"]), _Union(state["learning"])
        self._busy_s = defaultdict(float, state["busy_s"])
        self._held_s = defaultdict(float, state["held_s"])
        self._blocked_s = defaultdict(float, state["blocked_s"])
        self._names = {told: (name, kind) for told, (name, kind) in state["names"].items()}

    # -- the trace ---------------------------------------------------------------------------------

    def traced(self) -> Sequence[Interval]:
        return self._trace

    def remarks(self) -> dict[str, Any]:
        return {"clock": "VIRTUAL", "events_left_out": self._left_out}
