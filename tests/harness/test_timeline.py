"""Busy intervals, idle fractions and the Perfetto trace."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.protocols import Interval
from harness.timeline import Timeline, blocked, union

_WINDOWS = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 100)).map(lambda pair: (min(pair), max(pair))),
    max_size=12,
)


def _timeline(intervals: list[tuple[int, int]], resource: str = "engine/0") -> Timeline:
    timeline = Timeline(0.0)
    for start, end in intervals:
        timeline.add(Interval(resource, "work", float(start), float(end)))
    return timeline


@given(busy=_WINDOWS, inside=_WINDOWS)
def test_busy_and_idle_add_up_to_one(busy: list, inside: list) -> None:
    timeline = _timeline(busy)
    moments = {t for start, end in inside for t in range(start, end)}
    worked = {t for start, end in busy for t in range(start, end)}
    idle = timeline.idle_fraction(["engine/0"], inside)
    if not moments:
        assert idle is None
        return
    assert idle is not None
    assert timeline.busy_s(["engine/0"], inside) == pytest.approx(len(moments & worked))
    assert idle + timeline.busy_s(["engine/0"], inside) / len(moments) == pytest.approx(1.0)


@given(
    busy=st.lists(_WINDOWS, min_size=1, max_size=3),
    waiting=st.lists(_WINDOWS, min_size=3, max_size=3),
    inside=_WINDOWS,
)
def test_busy_blocked_and_idle_add_up_to_one(busy: list, waiting: list, inside: list) -> None:
    """Second by second: each is one of the three for each resource, and busy wins."""
    timeline, names = Timeline(0.0), [f"engine/{n}" for n in range(len(busy))]
    counts = {"busy": 0, "blocked": 0, "idle": 0}
    moments = {t for start, end in inside for t in range(start, end)}
    for name, work, wait in zip(names, busy, waiting, strict=False):
        for track, windows in ((name, work), (blocked(name), wait)):
            for start, end in windows:
                timeline.add(Interval(track, "something", float(start), float(end)))
        works = {t for start, end in work for t in range(start, end)}
        waits = {t for start, end in wait for t in range(start, end)}
        for t in moments:
            counts["busy" if t in works else "blocked" if t in waits else "idle"] += 1
    shares = timeline.shares(names, inside)
    if not moments:
        assert shares == {"busy": None, "blocked": None, "idle": None}
        return
    assert sum(share for share in shares.values() if share is not None) == pytest.approx(1.0)
    total = len(moments) * len(names)
    assert shares == pytest.approx({state: n / total for state, n in counts.items()})
    assert timeline.idle_fraction(names, inside) == pytest.approx(
        (counts["blocked"] + counts["idle"]) / total
    )


def test_two_resources_share_the_window() -> None:
    timeline = _timeline([(0, 10)])
    timeline.add(Interval("engine/1", "work", 0.0, 5.0))
    assert timeline.idle_fraction(["engine/0", "engine/1"], [(0, 10)]) == pytest.approx(0.25)
    assert timeline.idle_fraction(["engine/0", "engine/9"], [(0, 10)]) == pytest.approx(0.5)
    assert timeline.resources("engine") == ["engine/0", "engine/1"]


def test_union_joins_touching_windows_and_drops_empty_ones() -> None:
    assert union([(3, 4), (1, 2), (2, 3), (7, 7), (9, 8)]) == [(1, 4)]


def test_busy_marks_the_block_even_when_it_raises() -> None:
    timeline = Timeline(time.monotonic())
    with pytest.raises(KeyError), timeline.busy("learner/0", "backward", rows=3):
        raise KeyError
    (interval,) = timeline.intervals
    assert interval.end_s >= interval.start_s
    assert interval.args == {"rows": 3}


def test_the_trace_names_its_tracks_and_counts_microseconds(tmp_path: Path) -> None:
    timeline = Timeline(100.0)
    timeline.add(Interval("engine/0", "decode", 100.5, 101.0, {"rows": 2}))
    timeline.add(Interval("sandbox/03", "exec", 100.6, 100.7))
    timeline.instant("groups", "group closed", at_s=102.0, group=1)
    timeline.write(tmp_path / "timeline.json")
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(names.values()) == {"engine/0", "sandbox/03", "groups"}
    decode = next(e for e in events if e["name"] == "decode")
    assert (decode["ph"], decode["ts"], decode["dur"]) == ("X", 5e5, 5e5)
    assert names[decode["tid"]] == "engine/0"
    closed = next(e for e in events if e["name"] == "group closed")
    assert (closed["ph"], closed["ts"], closed["args"]) == ("i", 2e6, {"group": 1})


def test_arrows_lead_from_a_trajectory_to_its_backwards(tmp_path: Path) -> None:
    """0-1 was verified before its backward; 0-0 is captured while its verifier still runs; 0-2 has
    no sandbox. Each end lies inside the interval that it hangs on."""
    timeline = Timeline(100.0)
    for resource, name, start_s, end_s, args in (
        ("sandbox/00", "exec", 100.0, 101.0, {"trajectory": "0-0"}),
        ("sandbox/00", "verify", 101.0, 109.0, {"trajectory": "0-0"}),
        ("sandbox/01", "exec", 100.0, 102.0, {"trajectory": "0-1"}),
        ("sandbox/01", "verify", 102.0, 103.0, {"trajectory": "0-1"}),
        ("sandbox/01", "exec", 108.0, 109.0, {"trajectory": "0-1"}),
        ("learner/0", "capture", 104.0, 105.0, {"trajectories": ["0-0", "0-1", "0-2"]}),
        ("learner/0", "step", 106.0, 107.0, {}),
    ):
        timeline.add(Interval(resource, name, start_s, end_s, args))
    timeline.write(tmp_path / "timeline.json")
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    arrows: dict[int, list] = {}
    for e in events:
        if e["ph"] in "sf":
            arrows.setdefault(e["id"], []).append((e["ph"], names[e["tid"]], e["ts"]))
            assert any(
                x["ph"] == "X" and x["tid"] == e["tid"] and x["ts"] <= e["ts"] < x["ts"] + x["dur"]
                for x in events
            )
    assert list(arrows.values()) == [
        [("s", "sandbox/00", 4e6 - 1), ("f", "learner/0", 4e6)],
        [("s", "sandbox/01", 3e6 - 1), ("f", "learner/0", 4e6)],
    ]
    assert {e["bp"] for e in events if e["ph"] == "f"} == {"e"}


def test_a_hundred_thousand_intervals_are_no_burden(tmp_path: Path) -> None:
    draw = random.Random(0)
    timeline = Timeline(0.0)
    for _ in range(100_000):
        start = draw.uniform(0, 1000)
        timeline.add(Interval(f"sandbox/{draw.randrange(16):02d}", "exec", start, start + 0.05))
    began = time.perf_counter()
    idle = timeline.idle_fraction(timeline.resources("sandbox"), [(0.0, 500.0), (600.0, 1000.0)])
    timeline.write(tmp_path / "timeline.json")
    assert idle is not None and 0.6 < idle < 0.9
    assert time.perf_counter() - began < 10
