"""The monotonic clock of another machine, told in this one's.

Busy intervals are measured where the work is done. Processes of one machine share its monotonic
clock; that of another one began at another moment. Its offset is estimated as NTP does it: of some
questions what the clock says is taken to be said halfway between asking and answer, and the
quickest answer counts, which bounds the error by half of its round trip.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from harness.protocols import Interval


class Reading(NamedTuple):
    """Another clock's time, asked for and answered at these of ours."""

    asked_s: float
    theirs_s: float
    answered_s: float


def identity() -> str:
    """Equal for processes that share a monotonic clock."""
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/time"))
    return "/".join(parts) or os.uname().nodename


def now() -> float:
    return time.monotonic()


def offset_s(readings: Sequence[Reading]) -> tuple[float, float]:
    """(what is to be added to theirs, the most that this can be wrong by)."""
    best = min(readings, key=lambda r: r.answered_s - r.asked_s)
    error_s = (best.answered_s - best.asked_s) / 2
    return best.asked_s + error_s - best.theirs_s, error_s


def shifted(intervals: Iterable[Interval], by_s: float) -> list[Interval]:
    if not by_s:
        return list(intervals)
    return [replace(i, start_s=i.start_s + by_s, end_s=i.end_s + by_s) for i in intervals]
