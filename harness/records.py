"""A run's folder: updates.csv, trajectories.jsonl, summary.json, manifest.json, timeline.json.

Nothing is half-written: rows and lines are flushed whole, JSON files appear by renaming. A float
that is not finite becomes null (an empty cell in updates.csv).
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

from harness.config import Config
from harness.hardware import hardware_label
from harness.outcomes import Outcomes
from harness.protocols import Trajectory
from harness.trajectory_lines import encode

SCHEMA_PATH = Path(__file__).with_name("summary.schema.json")


def finite(value: Any) -> Any:
    """The same value with every float that is not finite as None, ready for JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return finite(dataclasses.asdict(value))
    return str(value) if isinstance(value, Path) else value


def write_json(path: Path, value: Any) -> None:
    """Write beside the path, then rename: a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(finite(value), file, indent=1, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class Records:
    """Writes one run's folder. Updates all have the columns of the first. `resumed`: its lines go
    on where they end."""

    def __init__(self, folder: Path, resumed: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._mode: Literal["a", "w"] = "a" if resumed else "w"
        self._updates: TextIO | None = None
        self._lines: dict[str, TextIO] = {}
        self.outcomes = Outcomes()
        self.written: set[str] = set()
        """Ids of trajectories that are handed over again: their lines are there."""
        self._writer: csv.DictWriter[str] | None = None

    def update(self, row: Mapping[str, Any]) -> None:
        """One optimizer step. Raises ValueError for a column that the first row had not."""
        if self._writer is None or self._updates is None:
            path = self.folder / "updates.csv"
            self._updates = path.open(self._mode, newline="", encoding="utf-8")
            self._writer = csv.DictWriter(self._updates, list(row), lineterminator="\n")
            if not self._updates.tell():
                self._writer.writeheader()
        self._writer.writerow(finite(row))
        self._updates.flush()

    def trajectory(
        self, trajectory: Trajectory, file: str = "trajectories.jsonl", **extra: Any
    ) -> None:
        """One trajectory, with its tokens; `extra` adds keys such as batch or phase."""
        self.outcomes.add(trajectory)
        if trajectory.trajectory_id in self.written:
            return
        if file not in self._lines:
            self._lines[file] = (self.folder / file).open(self._mode, encoding="utf-8")
        found = extra | encode(trajectory)
        try:
            line = json.dumps(found, separators=(",", ":"), allow_nan=False)
        except (ValueError, TypeError):  # a float that is not finite, or what JSON has no word for
            line = json.dumps(finite(found), separators=(",", ":"), allow_nan=False)
        self._lines[file].write(line + "\n")
        self._lines[file].flush()

    def manifest(self, manifest: Mapping[str, Any]) -> None:
        write_json(self.folder / "manifest.json", manifest)

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Replace summary.json; the shape is that of summary.schema.json."""
        write_json(self.folder / "summary.json", summary)

    def close(self) -> None:
        for file in (self._updates, *self._lines.values()):
            if file is not None:
                file.close()
        self._updates = self._writer = None
        self._lines = {}


def _hardware(config: Config) -> str:
    """What the work ran on, or would have run on."""
    if config.clock.kind == "virtual":
        return f"VIRTUAL {config.hardware.label}, {config.hardware.shape}"
    return config.hardware.label or hardware_label()


def blank_summary(config: Config) -> dict[str, Any]:
    """A summary of a run in which nothing has happened yet: every key of the schema is there."""
    times = (
        "total_s", "setup_s", "evaluation_s", "parity_s", "per_update_s", "rollout_s", "tail_s",
        "decide_s", "learner_busy_s", "engine_busy_s", "verify_s", "sandbox_start_s",
    )  # fmt: skip
    return {
        "schema_version": 1,
        "status": "failed",
        "schedule": config.schedule.name,
        "release": config.schedule.release,
        "placement": config.schedule.placement,
        "env": config.env.name,
        "dataset": config.env.dataset,
        "trains_on_evaluation": False,
        "objective": config.objective.name,
        "policy": config.policy.name,
        "engine": config.engine.name,
        "learner": config.learner.name,
        "sandbox": config.sandbox.kind,
        "clock": config.clock.kind,
        "cluster": config.cluster.name,
        "hardware": _hardware(config),
        "seed": config.seed,
        "budget": {
            "kind": config.budget.kind,
            "limit": config.budget.limit,
            "spent": 0,
            "discarded": None,
        },
        "updates": 0,
        "trajectories": 0,
        "trajectories_lost": 0,
        "groups_discarded": {},
        "devices": None,
        "tokens_generated": 0,
        "tokens_trained": 0,
        "time": dict.fromkeys(times),
        "idle": {"learner": None, "engine": None, "devices": None},
        "resources": None,
        "staleness": {"mean": None, "max": None, "violations": None},
        "peers": None,
        "nvml": None,
        "accuracy": {
            "initial": None,
            "final": None,
            "tasks": 0,
            "samples_per_task": config.evaluation.samples_per_task,
            "pass_at_k": {"initial": None, "final": None},
            "curve": [],
        },
        "overlap_efficiency": None,
        "parity": None,
        "ledger": None,
        "sandboxes": {"created": 0, "removed": 0, "leaked": 0},
        "infrastructure_errors": {},
        "agent_failures": {},
        "integrity": {},
    }
