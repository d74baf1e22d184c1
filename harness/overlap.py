"""How much of the overlap that a release rung allows was had: `overlap_efficiency`.

Source: math.md section 3. A trajectory may be learnt from its release time rho on, at a backward
cost c: the packed cost that the synchronous schedule pays (0 where the update does not train on
it). T* bounds every schedule from below, T_sync is the synchronous schedule on the same recorded
timings, T what happened; all three end before the optimizer step. Torch-free, pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.protocols import Group, Release, Trajectory
from harness.timings import Costs, UpdateTimings, packed_s

SMALLEST_GAP = 0.05  # of T_sync: below it there is nothing to overlap, and the quotient is noise
FORWARD_SHARE = 1 / 3  # of a pass: a backward pass computes about twice as much
COLUMNS = ("overlap_efficiency", "t_star_s", "t_sync_s", "t_s")


@dataclass(frozen=True)
class Job:
    """A trajectory's release time rho and backward cost c, in seconds."""

    release_s: float
    cost_s: float


def earliest_end(jobs: Sequence[Job], learners: int = 1) -> float:
    """T*: no schedule ends before it. One learner: max_j (rho_j + sum of c_i with rho_i >= rho_j),
    attained by processing in release order. `learners` that each take whole trajectories: the
    larger of max_j (rho_j + c_j) and max_t (t + work left at t / learners), valid but in general
    not attained. 0 of nothing."""
    if learners > 1:
        return _earliest_end_shared(jobs, learners)
    end_s = work_s = 0.0
    for job in sorted(jobs, key=lambda j: -j.release_s):
        work_s += job.cost_s
        end_s = max(end_s, job.release_s + work_s)
    return end_s


def _earliest_end_shared(jobs: Sequence[Job], learners: int) -> float:
    """The work left at t, which no number of learners has been able to do before, is piecewise
    linear in t: its maxima lie at release times."""
    alone_s = max((j.release_s + j.cost_s for j in jobs), default=0.0)

    released = sorted(jobs, key=lambda j: j.release_s)
    ends_s = sorted(j.release_s + j.cost_s for j in jobs)
    to_come_s = math.fsum(j.cost_s for j in jobs)  # of what is released at t or later
    begun_s, begun, over, bound_s = 0.0, 0, 0, alone_s
    for n, job in enumerate(released):  # begun_s: release + cost of what is released and not over
        t = job.release_s
        while begun + over < n and released[begun + over].release_s < t:
            earlier = released[begun + over]
            to_come_s -= earlier.cost_s
            begun_s += earlier.release_s + earlier.cost_s
            begun += 1
        while over < len(ends_s) and ends_s[over] < t:
            begun_s -= ends_s[over]
            begun -= 1
            over += 1
        bound_s = max(bound_s, t + (to_come_s + begun_s - begun * t) / learners)
    return bound_s


@dataclass(frozen=True)
class Overlap:
    """One update's three ends, in seconds since its batch began."""

    t_star_s: float
    t_sync_s: float
    t_s: float

    @property
    def efficiency(self) -> float | None:
        """(T_sync - T) / (T_sync - T*); None where T_sync - T* is under 5 % of T_sync. Above 1
        where passes cost less than they do the synchronous schedule, below 0 where the update was
        slower than a synchronous one."""
        return _quotient([self])

    def row(self) -> dict[str, float | None]:
        """As columns of updates.csv."""
        values = (self.efficiency, self.t_star_s, self.t_sync_s, self.t_s)
        return dict(zip(COLUMNS, values, strict=True))


def _quotient(overlaps: Sequence[Overlap]) -> float | None:
    gap_s = math.fsum(o.t_sync_s - o.t_star_s for o in overlaps)
    if gap_s <= 0 or gap_s < SMALLEST_GAP * math.fsum(o.t_sync_s for o in overlaps):
        return None
    return math.fsum(o.t_sync_s - o.t_s for o in overlaps) / gap_s


def run_efficiency(rows: Iterable[Mapping[str, Any]]) -> float | None:
    """Of a run, from its updates' rows: the seconds that overlap saved in all updates over the
    seconds that it could have saved, so that an update counts by what was at stake in it, those
    whose own quotient is null included. None where that is under 5 % of the run."""
    columns = COLUMNS[1:]
    known = [row for row in rows if row["t_s"] is not None]
    return _quotient([Overlap(*(row[c] for c in columns)) for row in known])


def release_s(update: UpdateTimings, group: Group, trajectory: Trajectory, rung: Release) -> float:
    """When the rung lets the trajectory's backward start, on the run's clock."""
    if rung == "batch":
        return update.last_event_s
    if rung == "group":
        return update.closed_s(group)
    return trajectory.reward_s if rung == "reward" else trajectory.finished_s


def _jobs(
    update: UpdateTimings, group: Group, trajectory: Trajectory, rung: Release, cost_s: float
) -> list[Job]:
    """Of one trajectory. Under `turn` the forward part of each turn's share of the tokens may start
    when its tokens are there."""
    origin_s = update.started_s
    end_s = release_s(update, group, trajectory, rung) - origin_s
    tokens = trajectory.turns[-1].action_end if trajectory.turns else 0
    if rung != "turn" or not tokens:
        return [Job(end_s, cost_s)]
    jobs, before, forward_s = [], 0, FORWARD_SHARE * cost_s
    for turn in trajectory.turns:
        share = (turn.action_end - before) / tokens
        jobs.append(Job(turn.generated_s - origin_s, forward_s * share))
        before = turn.action_end
    return [*jobs, Job(end_s, cost_s - forward_s)]


def overlap(update: UpdateTimings, cost_s: Mapping[str, float], fold_s: float) -> Overlap | None:
    """The three ends of an update that was played at one rung; None for a schedule without rungs.

    `cost_s`: trajectory id -> packed backward cost, absent where the update does not train on it;
    `fold_s`: of one group. Nobody steps before the last event, which is a job of no cost; where
    backwards need no reward (`submit`, `turn`), every group with a gradient is folded after its
    last one.
    T_sync shares the work evenly over the learners, which no packing can beat."""
    rung = update.release
    if rung is None:
        return None
    origin_s, m = update.started_s, update.learners
    last_s = update.last_event_s - origin_s
    jobs = [Job(last_s, 0.0)] + [
        job
        for g in update.groups
        for t in g.trajectories
        for job in _jobs(update, g, t, rung, cost_s.get(t.trajectory_id, 0.0))
    ]
    t_star_s = earliest_end(jobs, m)
    if rung in ("submit", "turn"):
        trained = [
            g for g in update.groups if any(t.trajectory_id in cost_s for t in g.trajectories)
        ]
        folded = [update.closed_s(g) - origin_s + fold_s for g in trained]
        t_star_s = max([t_star_s, *folded])
    work_s = math.fsum(j.cost_s for j in jobs)
    return Overlap(t_star_s, last_s + work_s / m, update.step_s)


def overlap_row(
    update: UpdateTimings, packed: Iterable[Sequence[Trajectory]], costs: Costs | None
) -> dict[str, float | None]:
    """An update's columns of updates.csv; `packed` are the passes of the synchronous schedule,
    `costs` those of this run's learner (None where nothing was learnt yet)."""
    cost_s = {} if costs is None else packed_s(packed, costs.accumulate)
    found = overlap(update, cost_s, 0.0 if costs is None else costs.fold_s)
    return dict.fromkeys(COLUMNS) if found is None else found.row()
