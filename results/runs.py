"""A run as its artifacts tell it: the summary, the configuration, and tables of what happened.

Everything heavy (updates, trajectories, evaluations) is read when it is asked for, once.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

# The head of a line of evaluation.jsonl, so that its tokens need not be parsed.
_SAMPLE = re.compile(
    r'^\{"phase":"([^"]*)",.*?"task_id":"([^"\\]*)",.*?"reward":([-0-9.eE+]+|null)[,}]'
)
_HEAD = 2000
TEXT = ("groups", "release", "release_why")  # columns of updates.csv that are no figures


@dataclass(eq=False)
class Run:
    """One finished run. `settings` are dotted keys of its configuration, empty where it left none;
    `notes` say what was wrong with its artifacts and was not used."""

    name: str
    summary: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fetch: Callable[[], Path | None] = lambda: None

    @cached_property
    def folder(self) -> Path | None:
        """Where its files lie; None where a store has its figures alone."""
        return self.fetch()

    @property
    def seed(self) -> int:
        return self.summary["seed"]

    @property
    def budget(self) -> tuple[str, float]:
        return self.summary["budget"]["kind"], self.summary["budget"]["limit"]

    @property
    def virtual(self) -> bool:
        return self.summary.get("clock") == "virtual"

    @property
    def ran_on(self) -> str:
        """Clock, engine, sandbox, hardware and devices: on every row, in every caption."""
        total = (self.summary.get("devices") or {}).get("total")
        clock = "VIRTUAL clock (simulated)" if self.virtual else f"{self.summary['clock']} clock"
        return (
            f"{clock}, engine {self.summary['engine']}, sandbox {self.summary['sandbox']}, "
            f"{self.summary['hardware']}{f', {total} devices' if total else ''}"
        )

    def get(self, *keys: str) -> Any:
        """A figure of the summary, None where it or what it lies in is not there."""
        found: Any = self.summary
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def file(self, name: str) -> Path | None:
        path = self.folder / name if self.folder is not None else None
        return path if path is not None and path.is_file() else None

    @cached_property
    def updates(self) -> list[dict[str, Any]]:
        """The rows of updates.csv, one per optimizer step."""
        return read_updates(self.file("updates.csv"))

    @cached_property
    def trajectories(self) -> list[dict[str, Any]]:
        """The lines of trajectories.jsonl without their tokens; a line cut short is left out."""
        path = self.file("trajectories.jsonl")
        if path is None:
            return []
        return [
            {k: v for k, v in line.items() if k not in ("token_ids", "behaviour_logprobs")}
            for line in _lines(path)
        ]

    @cached_property
    def solved(self) -> dict[str, dict[str, list[bool]]]:
        """Phase -> task -> whether each judged sample was solved, from evaluation.jsonl."""
        path = self.file("evaluation.jsonl")
        found: dict[str, dict[str, list[bool]]] = {}
        if path is None:
            return found
        with path.open(encoding="utf-8") as file:
            for text in file:
                match = _SAMPLE.match(text[:_HEAD])
                if match is None or match[3] == "null":
                    continue
                found.setdefault(match[1], {}).setdefault(match[2], []).append(
                    float(match[3]) == 1.0
                )
        return found

    def rates(self, phase: str) -> dict[str, float]:
        """Task -> share of its judged samples that were solved."""
        return {task: sum(s) / len(s) for task, s in self.solved.get(phase, {}).items() if s}

    @cached_property
    def curve(self) -> list[Point]:
        """The evaluated weights in order: before training, at the marks, at the end."""
        marks = self.get("accuracy", "curve") or []
        points = [Point(0.0, 0.0, "initial", self.get("accuracy", "initial"))]
        for mark in marks:
            points.append(
                Point(
                    mark["spent"],
                    self._seconds(mark["spent"], mark["updates"]),
                    mark["phase"],
                    mark["solve_rate"],
                )
            )
        spent = self.get("budget", "spent")
        end_s = self.get("time", "training_s")
        points.append(Point(spent, end_s, "final", self.get("accuracy", "final")))
        return [p for p in points if p.solve_rate is not None and p.spent is not None]

    def _seconds(self, spent: float, updates: int) -> float | None:
        """Training seconds at which so much had been spent: the budget's own where it counts
        time, else the end of that update."""
        kind, _ = self.budget
        if kind == "wall_clock_s":
            return spent
        if kind == "device_s":
            total = (self.summary.get("devices") or {}).get("total")
            return spent / total if total else None
        return self.seconds_of(updates) if updates else 0.0

    def seconds_of(self, updates: int) -> float | None:
        """Training seconds of the first `updates` updates; None where updates.csv lacks one."""
        took = [row.get("per_update_s") for row in self.updates[:updates]]
        known = [seconds for seconds in took if seconds is not None]
        return sum(known) if len(known) == updates else None


@dataclass(frozen=True)
class Point:
    """Weights that were evaluated: what they had cost in the budget's unit and in training seconds
    (None where it is not known), under which phase of evaluation.jsonl, and their solve rate."""

    spent: float
    seconds: float | None
    phase: str
    solve_rate: float | None


def read_updates(path: Path | None) -> list[dict[str, Any]]:
    """Rows with their figures as numbers, None where one is missing or not finite. A last row that
    was cut short is left out; no rows where there is no file, or nothing in it yet."""
    if path is None:
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    whole = text[: text.rfind("\n") + 1].splitlines()
    return [
        {key: value if key in TEXT else number(value) for key, value in row.items()}
        for row in csv.DictReader(whole)
    ]


def number(text: str | None) -> float | None:
    try:
        value = float(text or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for text in file:
            try:
                yield json.loads(text)
            except ValueError:
                continue  # cut short


def without_nan(value: Any, key: str, found: list[str]) -> Any:
    """The same with None for every number that is not finite; their keys are added to `found`."""
    if isinstance(value, dict):
        return {
            k: without_nan(inner, f"{key}.{k}" if key else k, found) for k, inner in value.items()
        }
    if isinstance(value, list):
        return [without_nan(inner, f"{key}[{i}]", found) for i, inner in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        found.append(key)
        return None
    return value
