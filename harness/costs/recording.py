"""A recorded run as calibration reads it: lives, busy intervals, and how many were busy when."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from environments.simulated.trace import recorded_plan
from environments.simulated.workload import Limits, Plan
from harness.protocols import UsageError

Array = NDArray[np.float64]
SANDBOX_WORK = ("start", "exec", "collect", "verify")  # when a sandbox's processes run


@dataclass(frozen=True)
class Busy:
    """One busy interval, in seconds of the run's clock."""

    resource: str
    name: str
    start_s: float
    end_s: float
    args: dict[str, Any]

    @property
    def took_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Life:
    """A trajectory that has its reward: what it did, and between which moments its turns ran."""

    run: int
    group: int
    plan: Plan
    generating_s: Sequence[tuple[float, float]]  # of each turn: from its request to its answer
    started_s: float


class Profile:
    """How many of some intervals are under way, as a function of time."""

    def __init__(self, intervals: Iterable[tuple[float, float]]) -> None:
        pairs = np.array(sorted(intervals), dtype=np.float64).reshape(-1, 2)
        times = np.concatenate([pairs[:, 0], pairs[:, 1]])
        steps = np.concatenate([np.ones(len(pairs)), -np.ones(len(pairs))])
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        counts = np.cumsum(steps[order])
        self._counts = np.concatenate([[0.0], counts])
        self._area = np.concatenate([[0.0], np.cumsum(counts[:-1] * np.diff(self._times))])

    def at(self, times_s: Array) -> Array:
        """Their number at each of these moments."""
        return self._counts[np.searchsorted(self._times, times_s, side="right")]

    def mean(self, starts_s: Array, ends_s: Array) -> Array:
        """Their mean number in each of these spans."""
        if not len(self._times):
            return np.zeros(len(starts_s))
        area = np.interp(ends_s, self._times, self._area)
        area -= np.interp(starts_s, self._times, self._area)
        return area / np.maximum(ends_s - starts_s, 1e-9)


@dataclass(frozen=True)
class Settings:
    """What calibration needs of a run's configuration."""

    policy: str
    engine_devices: int
    learner_devices: int
    groups_per_batch: int
    group_size: int
    limits: Limits
    time_limit_s: float


@dataclass(frozen=True)
class Recording:
    """`number` tells the runs of a calibration apart: group 3 of two runs are two groups."""

    folder: Path
    number: int
    settings: Settings
    summary: dict[str, Any]
    lives: list[Life]
    busy: list[Busy]

    @property
    def label(self) -> str:
        schedule = self.summary["schedule"]
        placement = ", colocated" if self.summary["placement"] == "colocated" else ""
        return f"{schedule}{placement}, seed {self.summary['seed']}"

    def named(self, *names: str) -> list[Busy]:
        return [b for b in self.busy if b.name in names and b.resource != "blocked"]


def read(folder: Path, number: int) -> Recording:
    """Raises UsageError for a folder without a run's files, or a run in virtual time."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        events = json.loads((folder / "timeline.json").read_text(encoding="utf-8"))["traceEvents"]
        lines = (folder / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()
        settings = _settings(
            yaml.safe_load((folder / ".hydra" / "config.yaml").read_text(encoding="utf-8"))
        )
    except OSError as error:
        raise UsageError(
            f"runs={folder}: {error.strerror} ({Path(str(error.filename)).name}); give folders of "
            "finished runs"
        ) from error
    except (ValueError, KeyError, yaml.YAMLError) as error:
        raise UsageError(f"runs={folder}: a file is no record of a run ({error!r})") from error
    if summary["clock"] != "wall":
        raise UsageError(f"runs={folder}: a run in virtual time measures nothing; give real ones")
    lives = [_life(json.loads(line), number) for line in lines]
    return Recording(
        folder, number, settings, summary, [x for x in lives if x is not None], _busy(events)
    )


def _settings(config: dict[str, Any]) -> Settings:
    schedule, rollout = config["schedule"], config["rollout"]
    return Settings(
        config["policy"]["name"], schedule["engine_devices"], schedule["learner_devices"],
        rollout["groups_per_batch"], rollout["group_size"],
        Limits(rollout["max_turns"], rollout["max_new_tokens"], rollout["max_context_tokens"]),
        rollout["time_limit_s"],
    )  # fmt: skip


def _life(line: dict[str, Any], number: int) -> Life | None:
    if line["reward"] is None or line["infrastructure_error"] is not None:
        return None
    spans = [(turn["started_s"], turn["generated_s"]) for turn in line["turns"]]
    return Life(number, line["group"], recorded_plan(line), spans, line["started_s"])


def _busy(events: list[dict[str, Any]]) -> list[Busy]:
    resources = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "process_name"
    }
    return [
        Busy(
            resources[event["pid"]], event["name"], event["ts"] / 1e6,
            (event["ts"] + event["dur"]) / 1e6, event["args"],
        )
        for event in events
        if event["ph"] == "X"
    ]  # fmt: skip
