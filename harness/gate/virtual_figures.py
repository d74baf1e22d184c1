"""What small virtual runs come to: every schedule on paper, the same to twelve digits anywhere."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.gate.reference import Entry
from harness.virtual_jobs import Simulator, summary_updates

COMMON = (
    "workload=swebench_verified", "budget.limit=4", "rollout.group_size=4",
    "rollout.groups_per_batch=4", "workload.turns.median=8",
)  # fmt: skip
PAPER = ("hardware=8xb200", "hardware.train_efficiency=0.02")  # a learner that is worth hiding
JOBS = {
    "sync": ("schedule=sync", *PAPER),
    "sync_colocated": ("schedule=sync_colocated", *PAPER),
    "one_step_off": ("schedule=one_step_off", *PAPER),
    "async": ("schedule=async", *PAPER),
    "async_4": ("schedule=async_4", *PAPER),
    "async_drop": ("schedule=async", "schedule.stale_groups=drop",
                   "schedule.partial_rollout=true", *PAPER),
    "stream_group": ("schedule=stream_group", *PAPER),
    "stream_reward": ("schedule=stream", *PAPER),
    "stream_submit": ("schedule=stream", "schedule.release=submit", *PAPER),
    "stream_auto": ("schedule=stream", "schedule.release=auto", *PAPER),
    "failures": ("schedule=stream", "schedule.release=submit", "rollout.retries=1", *PAPER,
                 "env.failures={start: 0.05, exec_transport: 0.02, parser: 0.2}"),
    "shared_cores": ("schedule=stream", "hardware=cpu2"),
}  # fmt: skip
# key of summary.json -> unit
FIGURES = {
    "time.per_update_s": "s",
    "time.tail_s": "s",
    "time.rollout_s": "s",
    "time.training_s": "s",
    "time.learner_busy_s": "s",
    "time.engine_busy_s": "s",
    "idle.learner": "fraction",
    "idle.engine": "fraction",
    "staleness.mean": "versions",
    "staleness.max": "versions",
    "overlap_efficiency": "fraction",
    "ledger.buffers_peak": "buffers",
    "updates": "updates",
    "trajectories": "trajectories",
    "trajectories_lost": "trajectories",
    "tokens_generated": "tokens",
    "tokens_trained": "tokens",
    "simulation.events": "events",
}
# columns of updates.csv, of which the mean over the updates is taken -> unit
COLUMNS = {"t_star_s": "s", "t_sync_s": "s"}


def _figures(summary: dict[str, Any], rows: list[dict[str, str]]) -> Iterator[tuple[str, Entry]]:
    for key, unit in FIGURES.items():
        found: Any = summary
        for part in key.split("."):
            found = (found or {}).get(part)
        if found is not None:  # a baseline has no ledger
            yield key, Entry(float(found), "exact", unit)
    for key, unit in COLUMNS.items():
        column = [float(row[key]) for row in rows if row[key]]
        if column:
            yield key, Entry(statistics.fmean(column), "exact", unit)


def measure(names: list[str], folder: Path) -> dict[str, Entry]:
    """`virtual/JOB/FIGURE` -> its entry, of the jobs named; their runs stay in `folder`."""
    with Simulator() as simulator:

        def play(name: str) -> dict[str, Entry]:
            where = folder / name
            summary = simulator.run(simulator.config([*COMMON, *JOBS[name]]), where)
            found = _figures(summary, summary_updates(where))
            return {f"virtual/{name}/{key}": entry for key, entry in found}

        played = simulator.side_by_side(play, names)
    return {key: entry for entries in played for key, entry in entries.items()}
