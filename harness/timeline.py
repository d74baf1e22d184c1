"""Busy and blocked intervals per resource: their shares, and a trace that opens in Perfetto.

Times are seconds of the system's monotonic clock, which every process of the machine shares; the
trace shows them from the run's origin. What a resource is blocked by lies on a track of its own
(`blocked("engine/0")`); docs/accounting.md says what counts as what.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.protocols import Interval

Window = tuple[float, float]
_INSIDE_S = 1e-6  # an arrow that leaves at an interval's very end would hang on nothing
STATES = ("busy", "blocked", "idle")


def blocked(resource: str) -> str:
    """The track of the times at which a resource held work that it might not do."""
    return f"blocked/{resource}"


def union(windows: Iterable[Window]) -> list[Window]:
    """The same times as disjoint windows in order; empty windows vanish."""
    merged: list[Window] = []
    for start, end in sorted(window for window in windows if window[1] > window[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def overlap_s(left: Sequence[Window], right: Sequence[Window]) -> float:
    """Seconds that two unions share."""
    shared, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        shared += max(0.0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return shared


def length_s(windows: Iterable[Window]) -> float:
    """Seconds of a union."""
    return sum(end - start for start, end in windows)


def idle_fraction(busy_s: float, available_s: float) -> float | None:
    """1 - busy / available; None where there is nothing to be idle."""
    if available_s <= 0:
        return None
    return min(1.0, max(0.0, 1.0 - busy_s / available_s))


def plain(interval: Interval) -> list[Any]:
    """Ready for JSON; `Interval(*plain(interval))` is the same."""
    i = interval
    return [i.resource, i.name, i.start_s, i.end_s, dict(i.args)]


class Timeline:
    """What happened when. Resources are named `kind/number`, such as engine/0 or sandbox/03."""

    def __init__(self, origin_s: float, now: Callable[[], float] = time.monotonic) -> None:
        """`now` is the clock that intervals are told in."""
        self.origin_s = origin_s
        self._now = now
        self._intervals: list[Interval] = []
        self._instants: list[tuple[str, str, float, dict[str, Any]]] = []

    @property
    def intervals(self) -> Sequence[Interval]:
        """In the order of their coming."""
        return self._intervals

    def add(self, interval: Interval) -> None:
        self._intervals.append(interval)

    def extend(self, intervals: Iterable[Interval]) -> None:
        self._intervals.extend(intervals)

    @contextlib.contextmanager
    def busy(self, resource: str, name: str, **args: Any) -> Iterator[None]:
        """Mark the resource busy for the length of the block, however it ends."""
        start_s = self._now()
        try:
            yield
        finally:
            self.add(Interval(resource, name, start_s, self._now(), args))

    def instant(self, track: str, name: str, *, at_s: float | None = None, **args: Any) -> None:
        """Something that took no time, such as a group's close."""
        self._instants.append((track, name, self._now() if at_s is None else at_s, args))

    def resources(self, kind: str) -> list[str]:
        """The names seen that start with `kind/`, sorted."""
        return sorted({i.resource for i in self.intervals if i.resource.startswith(f"{kind}/")})

    def unions(self, tracks: Iterable[str]) -> dict[str, list[Window]]:
        """Each track's intervals as disjoint windows; none for a track that was never seen."""
        found: dict[str, list[Window]] = {track: [] for track in tracks}
        for interval in self.intervals:
            if interval.resource in found:
                found[interval.resource].append((interval.start_s, interval.end_s))
        return {track: union(windows) for track, windows in found.items()}

    def busy_s(self, resources: Sequence[str], windows: Iterable[Window]) -> float:
        """Busy seconds inside the windows, summed over the resources; overlaps count once each."""
        inside = union(windows)
        return sum(overlap_s(busy, inside) for busy in self.unions(resources).values())

    def busy_together_s(self, one: str, other: str, windows: Iterable[Window]) -> float:
        """Seconds inside the windows in which either resource was busy."""
        tracks = self.unions([one, other])
        return overlap_s(union([*tracks[one], *tracks[other]]), union(windows))

    def together(self, resources: Sequence[str]) -> list[Window]:
        """When any of them was busy."""
        return union(w for track in self.unions(resources).values() for w in track)

    def idle_fraction(self, resources: Sequence[str], windows: Iterable[Window]) -> float | None:
        """1 - busy / available over the windows; None where there is nothing to be idle."""
        inside = union(windows)
        available_s = length_s(inside) * len(set(resources))
        return idle_fraction(self.busy_s(resources, inside), available_s)

    def shares(
        self, resources: Sequence[str], windows: Iterable[Window]
    ) -> dict[str, float | None]:
        """What part of their time inside the windows the resources were busy, blocked and idle; the
        three add up to 1. Busy wins where it overlaps blocked. None where there is no time."""
        inside, names = union(windows), list(dict.fromkeys(resources))
        available_s = length_s(inside) * len(names)
        if available_s <= 0:
            return dict.fromkeys(STATES)
        tracks = self.unions([*names, *map(blocked, names)])
        busy_s = sum(overlap_s(tracks[name], inside) for name in names)
        held = [union([*tracks[name], *tracks[blocked(name)]]) for name in names]
        held_s = sum(overlap_s(windows, inside) for windows in held)
        seconds = (busy_s, held_s - busy_s, available_s - held_s)
        return {state: max(0.0, s / available_s) for state, s in zip(STATES, seconds, strict=True)}

    def write(self, path: Path) -> None:
        """Chrome's trace format: one process per kind of resource, one named track per resource.
        Timestamps are microseconds from the origin."""
        tracks = [i.resource for i in self.traced()] + [track for track, *_ in self._instants]
        ids = _track_ids(dict.fromkeys(tracks))
        with path.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            file.write(",\n".join(map(_dump, self._events(ids))))
            file.write(f'\n],"otherData":{_dump(self.remarks())}}}\n')

    def traced(self) -> Sequence[Interval]:
        """What the trace shows."""
        return self.intervals

    def remarks(self) -> dict[str, Any]:
        """What the trace says of itself."""
        return {}

    # -- for a checkpoint --------------------------------------------------------------------------

    @property
    def instants(self) -> Sequence[tuple[str, str, float, dict[str, Any]]]:
        """(track, name, time, arguments), in the order of their coming."""
        return self._instants

    def state(self) -> dict[str, Any]:
        """What is known beside the trace."""
        return {}

    def restore(
        self,
        state: Mapping[str, Any],
        trace: Iterable[Interval],
        instants: Iterable[tuple[str, str, float, dict[str, Any]]],
    ) -> None:
        """A run goes on whose trace was this; times on this timeline's clock."""
        self._intervals.extend(trace)
        self._instants.extend(instants)

    # -- the trace ---------------------------------------------------------------------------------

    def _events(self, ids: dict[str, tuple[int, int]]) -> Iterator[dict[str, Any]]:
        for kind, process in dict.fromkeys((t.split("/")[0], p) for t, (p, _) in ids.items()):
            yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": kind}}
        for track, (process, thread) in ids.items():
            yield {
                "ph": "M", "name": "thread_name", "pid": process, "tid": thread,
                "args": {"name": track},
            }  # fmt: skip
        for i in self.traced():
            process, thread = ids[i.resource]
            yield {
                "ph": "X", "name": i.name, "pid": process, "tid": thread, "ts": self._us(i.start_s),
                # From rounded ends, so that what touches does not overlap.
                "dur": round(self._us(i.end_s) - self._us(i.start_s), 3), "args": dict(i.args),
            }  # fmt: skip
        for track, name, at_s, args in self._instants:
            process, thread = ids[track]
            yield {
                "ph": "i", "s": "t", "name": name, "pid": process, "tid": thread,
                "ts": self._us(at_s), "args": args,
            }  # fmt: skip
        yield from self._flows(ids)

    def _flows(self, ids: dict[str, tuple[int, int]]) -> Iterator[dict[str, Any]]:
        """An arrow from each trajectory to every backward that it is in: from the last that had
        begun of its sandbox's intervals (under `release=submit` the verifier may still run) to the
        learner's. Chrome's format: a start and a finish of one id, each inside its interval (one
        without a length has no inside)."""
        rollouts: dict[str, list[Interval]] = {}
        for i in self.traced():
            drawn = self._us(i.end_s) > self._us(i.start_s)
            if drawn and i.resource.startswith("sandbox/") and "trajectory" in i.args:
                rollouts.setdefault(i.args["trajectory"], []).append(i)
        arrow = 0
        for backward in self.traced():
            if not backward.resource.startswith("learner/"):
                continue
            for trajectory in backward.args.get("trajectories", ()):
                begun = [i for i in rollouts.get(trajectory, ()) if i.start_s <= backward.start_s]
                if not begun:
                    continue  # a replay has no sandbox
                last, arrow = max(begun, key=lambda i: i.start_s), arrow + 1
                leaves_s = max(last.start_s, min(last.end_s, backward.start_s) - _INSIDE_S)
                ends = (
                    ("s", last.resource, leaves_s, {}),
                    ("f", backward.resource, backward.start_s, {"bp": "e"}),
                )
                for phase, track, at_s, more in ends:
                    process, thread = ids[track]
                    yield {
                        "ph": phase, "cat": "backward", "name": "backward", "id": arrow,
                        "pid": process, "tid": thread, "ts": self._us(at_s), **more,
                    }  # fmt: skip

    def _us(self, at_s: float) -> float:
        return round((at_s - self.origin_s) * 1e6, 3)


def _track_ids(tracks: Iterable[str]) -> dict[str, tuple[int, int]]:
    ids: dict[str, tuple[int, int]] = {}
    processes: dict[str, int] = {}
    for thread, track in enumerate(sorted(tracks), start=1):
        process = processes.setdefault(track.split("/")[0], len(processes) + 1)
        ids[track] = (process, thread)
    return ids


def _dump(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"), default=str)
