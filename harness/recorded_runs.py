"""Recorded runs once more, in virtual time: as many updates, by the same schedule."""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from environments.simulated.workload_config import WorkloadConfig
from harness.config import Config
from harness.costs.config import HardwareConfig
from harness.costs.recording import Recording
from harness.protocols import UsageError
from harness.virtual_jobs import Simulator, recorded_config, summary_updates

QUANTITIES = ("time.per_update_s", "time.tail_s", "idle.learner", "idle.engine")
COLUMNS = ("per_update_s", "tail_s", "idle_learner", "idle_engine")  # of updates.csv
BEYOND = 2  # updates past those compared, beside those that staleness lets begin
# What of a run's configuration decides when things happen, beside the preset.
SECTIONS = ("schedule", "ledger")
NO_TIME = ("name", "target", "learning_rate")  # the schedule itself, and what changes no duration


@dataclasses.dataclass(frozen=True)
class Preset:
    """What runs are simulated under; `rollout` are keys of that section."""

    hardware: HardwareConfig
    workload: WorkloadConfig
    rollout: dict[str, Any]


def configure(simulator: Simulator, preset: Preset, recording: Recording, lives: str) -> Config:
    """The same schedule and number of updates, on the preset's hardware and with its lives
    ("drawn") or the run's ("trace")."""
    recorded = recorded_config(recording.folder)
    config = simulator.config([f"schedule={recording.summary['schedule']}"])
    config.hardware, config.workload = preset.hardware, dataclasses.replace(preset.workload)
    for key, value in preset.rollout.items():
        setattr(config.rollout, key, value)
    for section in SECTIONS:
        for key, value in recorded[section].items():
            if key not in NO_TIME and hasattr(getattr(config, section), key):
                setattr(getattr(config, section), key, value)
    updates = float(recording.summary["updates"])
    if recorded["budget"]["kind"] != "updates":
        # A budget of seconds was spent with trajectories for later updates in flight to its end.
        updates += (config.schedule.max_staleness or 0) + BEYOND
    config.budget.kind, config.budget.limit = "updates", updates
    config.seed, config.engine.slots = recorded["seed"], recorded["engine"]["slots"]
    config.sandbox.max_parallel = recorded["sandbox"]["max_parallel"]
    if lives == "trace":  # a start that was recorded has its wait for a place in it already
        config.sandbox.max_parallel = 100000
        config.workload.trace = str(recording.folder / "trajectories.jsonl")
    return config


def observed(folder: Path, updates: int) -> dict[str, float]:
    """QUANTITIES over the first so many updates of a run. Learning changes how long an update
    takes: means over others than the measured ones tell of that, and not of the simulator. Raises
    UsageError for a run without updates, or without one of these."""
    try:
        rows = [[float(row[key]) for key in COLUMNS] for row in summary_updates(folder)[:updates]]
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(f"runs={folder}: updates.csv cannot be read ({error!r})") from error
    if not rows:
        raise UsageError(f"runs={folder}: made no update; give runs with updates")
    took_s, tail_s, idle_learner, idle_engine = zip(*rows, strict=True)
    values = (
        statistics.fmean(took_s), statistics.fmean(tail_s),
        statistics.fmean(idle_learner, took_s), statistics.fmean(idle_engine, took_s),
    )  # fmt: skip
    return dict(zip(QUANTITIES, values, strict=True))


def update_errors(
    simulator: Simulator, presets: Sequence[Preset], recordings: Sequence[Recording], folder: Path
) -> list[float]:
    """Of each preset: by how much its update times are off, a share, in the mean over the runs with
    their own lives. The simulated runs stay in `folder`."""

    def play(job: tuple[int, int]) -> float:
        number, which = job
        recording, out = recordings[which], folder / f"{number}_{which}"
        simulator.run(configure(simulator, presets[number], recording, "trace"), out)
        updates = recording.summary["updates"]
        return abs(observed(out, updates)[QUANTITIES[0]] / measured_s[which] - 1)

    measured_s = [observed(r.folder, r.summary["updates"])[QUANTITIES[0]] for r in recordings]
    jobs = [(p, r) for p in range(len(presets)) for r in range(len(recordings))]
    errors = simulator.side_by_side(play, jobs)
    print(f"VIRTUAL {len(presets)} fits of {len(recordings)} runs: done", file=sys.stderr)
    size = len(recordings)
    return [statistics.fmean(errors[i : i + size]) for i in range(0, len(errors), size)]
