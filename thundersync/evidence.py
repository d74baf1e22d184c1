"""Is the streaming real? Reads a run's timeline.json and counts the backward passes that started
early.

A streamed backward is one that began before its group closed (math.md section 3, rungs `reward` and
above). A schedule that calls itself streaming and waits for the end of the batch shows none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class EarlyBackward:
    """One capture: its group, when it began and when the group closed (seconds of the run's
    clock), and whether it began before a reward of its own trajectories (`release=submit`)."""

    group: int
    started_s: float
    group_closed_s: float
    before_own_reward: bool


def early_backwards(timeline: Path) -> list[EarlyBackward]:
    """The captures of a recorded run that began before their group closed, in order."""
    events: list[dict[str, Any]] = json.loads(timeline.read_text(encoding="utf-8"))["traceEvents"]
    instants = [e for e in events if e["ph"] == "i"]
    closed = {e["args"]["group"]: e["ts"] for e in instants if e["name"] == "closed"}
    rewarded = {e["args"]["subject"]: e["ts"] for e in instants if e["name"] == "reward"}
    early = [
        EarlyBackward(
            group,
            e["ts"] / 1e6,
            closed[group] / 1e6,
            any(e["ts"] < rewarded.get(t, -1) for t in e["args"]["trajectories"]),
        )
        for e in events
        if e["ph"] == "X" and e["name"] == "capture"
        for group in e["args"]["groups"]
        if group in closed and e["ts"] < closed[group]
    ]
    return sorted(early, key=lambda capture: capture.started_s)
