"""Other trainers' figures, by their definitions, from this run's records.

For reading published figures beside ours; docs/accounting.md names each source and what differs.
Ratios are means over weight versions, as a mean over those trainers' own logs would be.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from harness.accounting import ALIVE, ENGINE, EXCHANGE, Ages, learner_ranks, mean
from harness.timeline import Timeline, Window, blocked, length_s, overlap_s, union


def version_windows(timeline: Timeline, windows: Sequence[Window]) -> list[Window]:
    """From training's start, then from one load of new weights to the next. What comes after the
    last load is of no version that was published, and left out."""
    if not windows:
        return []
    loads = sorted(
        i.end_s for i in timeline.intervals if i.name == EXCHANGE and i.resource == blocked(ENGINE)
    )
    starts = [windows[0][0], *loads]
    return list(zip(starts, loads, strict=False))


def trainer_idle_ratio(timeline: Timeline, ranks: int, windows: Sequence[Window]) -> float | None:
    """verl: of a step's time, weight synchronisation included, the part in which the trainer
    waited for samples. Here: no rank computes and no weights are exchanged."""
    occupied = timeline.together([*learner_ranks(ranks), blocked(ENGINE)])
    inside = union(windows)
    ratios = []
    for start, end in version_windows(timeline, windows):
        step = _clipped(inside, start, end)
        if length_s(step):
            ratios.append(1 - overlap_s(occupied, step) / length_s(step))
    return _mean(ratios)


def rollouter_idle_ratio(timeline: Timeline, windows: Sequence[Window]) -> float | None:
    """verl: of the time between two loads of weights, the last part, from when no rollout was
    under way and none was begun any more."""
    alive = union((i.start_s, i.end_s) for i in timeline.intervals if i.name == ALIVE)
    inside, ratios = union(windows), []
    for start, end in version_windows(timeline, windows):
        version = _clipped(inside, start, end)
        if not length_s(version):
            continue
        lived = _clipped(alive, start, end)
        quiet_from = lived[-1][1] if lived else start
        ratios.append(length_s(_clipped(inside, quiet_from, end)) / length_s(version))
    return _mean(ratios)


def verl(timeline: Timeline, ranks: int, windows: Sequence[Window], ages: Ages) -> dict[str, Any]:
    """verl's fully asynchronous trainer (verl/experimental/fully_async_policy)."""
    trajectories = ages.levels.total()
    return {
        "trainer_idle_ratio": trainer_idle_ratio(timeline, ranks, windows),
        "rollouter_idle_ratio": rollouter_idle_ratio(timeline, windows),
        "stale_trajectory_processed": sum(n for age, n in ages.newest.items() if age >= 1),
        "trajectory_staleness_mean": ages.means / trajectories if trajectories else None,
        "trajectory_staleness_max": max(ages.oldest, default=None),
        "partial_ratio": 1 - ages.levels[0] / trajectories if trajectories else None,
        "max_partial_span": max(ages.levels, default=None),
    }


def areal(ages: Ages) -> dict[str, Any]:
    """AReaL bounds how far a trajectory's head, its first token, may be behind the version that
    trains on it (max_head_offpolicyness)."""
    return {
        "head_offpolicyness_mean": mean(ages.first),
        "head_offpolicyness_max": max(ages.first, default=None),
    }


def prime_rl(ages: Ages) -> dict[str, Any]:
    """prime-rl counts the weight updates that happened while a rollout was in flight."""
    return {
        "off_policy_level_mean": mean(ages.levels),
        "off_policy_level_max": max(ages.levels, default=None),
    }


def peers(
    timeline: Timeline, ranks: int, windows: Sequence[Window], ages: Ages
) -> dict[str, dict[str, Any]]:
    """summary.json's `peers`."""
    return {
        "verl": verl(timeline, ranks, windows, ages),
        "areal": areal(ages),
        "prime_rl": prime_rl(ages),
    }


def _clipped(windows: Sequence[Window], start: float, end: float) -> list[Window]:
    return union((max(a, start), min(b, end)) for a, b in windows)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
