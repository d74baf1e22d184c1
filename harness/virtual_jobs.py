"""Virtual runs by the dozen, each in a process and a folder of its own, for tables made of them.

What is finished in its folder is not run again, so that an interrupted table goes on where it was;
take a new folder once the code or a preset has changed.
"""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import yaml

from harness import composition
from harness.config import Config, flatten
from harness.manifest import git_state
from harness.protocols import InfrastructureError, UsageError

T = TypeVar("T")
R = TypeVar("R")
SETTINGS = "settings.json"  # of a run, in its folder


class Simulator:
    """Runs virtual jobs in worker processes, one a core, which import what they need once."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(
            os.cpu_count() or 1, mp_context=multiprocessing.get_context("spawn")
        )
        self._composing = threading.Lock()  # Hydra composes one configuration at a time

    def __enter__(self) -> Simulator:
        return self

    def __exit__(self, *unused: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def config(self, overrides: Sequence[str]) -> Config:
        """Of a virtual run. Raises UsageError, or Hydra's own errors, for what it cannot be."""
        with self._composing:
            return composition.compose(["env=simulated", "tracking=none", *overrides])

    def run(self, config: Config, folder: Path) -> dict[str, Any]:
        """Its summary; its files stay in `folder`. Raises UsageError where it was refused,
        InfrastructureError where it broke."""
        told = json.dumps(dict(flatten(config)), default=str, sort_keys=True)
        done = folder / SETTINGS
        if not done.exists() or done.read_text(encoding="utf-8") != told:
            kind, said = self._pool.submit(_execute, config, folder).result()
            if kind == "usage":
                raise UsageError(said)
            if kind == "broken":
                raise InfrastructureError("start", f"{folder.name}: {said}")
            done.write_text(told, encoding="utf-8")
        return json.loads((folder / "summary.json").read_text(encoding="utf-8"))

    def side_by_side(self, call: Callable[[T], R], of: Sequence[T]) -> list[R]:
        """`call`, which may run jobs, of each; in order. The first error is raised."""
        with ThreadPoolExecutor(max_workers=max(1, len(of))) as threads:
            return list(threads.map(call, of))


def _execute(config: Config, folder: Path) -> tuple[str, str]:
    """In a worker: how the run ended, and what was said where it did not finish. Errors go back in
    words, as not all of them survive the way between processes."""
    from harness import job
    from harness.display import Display
    from harness.experiment import execute

    folder.mkdir(parents=True, exist_ok=True)
    try:
        job.check(config)
        with Display(io.StringIO()) as display:
            execute(config, folder, display)
    except UsageError as error:
        return "usage", str(error)
    except InfrastructureError as error:
        return "broken", str(error)
    return "finished", ""


def made_by(module: str, arguments: Sequence[str]) -> str:
    """Head of a table: the command, and the commit that it ran at."""
    state = git_state(Path(__file__).parent.parent)
    commit = state["commit"][:12] if state else "no git commit"
    changed = " (with changes that are not committed)" if state and state["dirty"] else ""
    return (
        f"Made by `python -m {module} {' '.join(arguments)}` at {commit}{changed}.\n\n"
        "**VIRTUAL: every figure of a model is simulated, none is measured.**\n"
    )


def summary_updates(folder: Path) -> list[dict[str, str]]:
    """The rows of updates.csv as they are."""
    with (folder / "updates.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def recorded_config(folder: Path) -> dict[str, Any]:
    """What a run was configured with."""
    return yaml.safe_load((folder / ".hydra" / "config.yaml").read_text(encoding="utf-8"))
