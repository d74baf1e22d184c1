"""What runs leave in timeline.json is a trace that Perfetto can open."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.composition import compose
from harness.display import Display
from harness.experiment import execute
from harness.job import check

Check = Callable[[dict[str, Any]], None]


def arrows(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e["ph"] in "sf"]


@pytest.mark.parametrize("name", ["sync_job", "stream_job"])
def test_a_run_leaves_a_whole_trace(
    name: str, check_trace: Check, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(name).folder
    trace = json.loads((folder / "timeline.json").read_text())
    check_trace(trace)
    assert arrows(trace)


@pytest.fixture(scope="module")
def virtual_trace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Some sandboxes' work takes no time here, and much of it begins as other work ends."""
    config = compose(
        ["env=simulated", "hardware=cpu2", "workload=swebench_verified", "tracking=none",
         "budget.limit=3", "rollout.group_size=4", "rollout.groups_per_batch=3",
         "schedule.release=submit", "workload.turns.median=8", "env.failures={parser: 0.1}"]
    )  # fmt: skip
    check(config)
    folder = tmp_path_factory.mktemp("virtual")
    execute(config, folder, Display(io.StringIO()))
    return json.loads((folder / "timeline.json").read_text())


def test_so_does_a_virtual_one(virtual_trace: dict[str, Any], check_trace: Check) -> None:
    check_trace(virtual_trace)
    assert len(arrows(virtual_trace)) > 20


def unnamed(events: list[dict[str, Any]]) -> None:
    events.remove(next(e for e in events if e["name"] == "thread_name"))


def twice(events: list[dict[str, Any]]) -> None:
    events.append(next(e for e in events if e["ph"] == "f"))


def no_start(events: list[dict[str, Any]]) -> None:
    events.remove(next(e for e in events if e["ph"] == "s"))


def unbound(events: list[dict[str, Any]]) -> None:
    next(e for e in events if e["ph"] == "f")["ts"] += 1e9


def overlapping(events: list[dict[str, Any]]) -> None:
    """The first of the longest track's slices ends inside the second."""
    tracks = [(e["pid"], e["tid"]) for e in events if e["ph"] == "X"]
    longest = max(set(tracks), key=tracks.count)
    first, second, *_ = (e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == longest)
    first["dur"] = second["ts"] - first["ts"] + second["dur"] / 2


@pytest.mark.parametrize("damage", [unnamed, twice, no_start, unbound, overlapping])
def test_a_damaged_trace_is_noticed(
    damage: Callable[[list[dict[str, Any]]], None],
    virtual_trace: dict[str, Any],
    check_trace: Check,
) -> None:
    damaged = json.loads(json.dumps(virtual_trace))
    damage(damaged["traceEvents"])
    with pytest.raises(AssertionError):
        check_trace(damaged)
