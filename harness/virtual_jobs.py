"""Virtual runs by the dozen, each in a process and a folder of its own, for tables made of them.

What is finished in its folder is not run again, so that an interrupted table goes on where it was;
take a new folder once the code or a preset has changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import yaml

from harness.protocols import InfrastructureError, UsageError

T = TypeVar("T")
R = TypeVar("R")


def simulate(
    overrides: Sequence[str], folder: Path, config_dir: Path | None = None
) -> dict[str, Any]:
    """The summary of one virtual run, whose folder stays. Raises UsageError where it was refused,
    InfrastructureError where it broke."""
    found = _finished(overrides, folder)
    if found is not None:
        return found
    command = [sys.executable, "-m", "harness.run"]
    if config_dir is not None:
        command += ["--config-dir", str(config_dir)]
    command += ["env=simulated", "tracking=none", f"hydra.run.dir={folder}", *overrides]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["no word"]
        if done.returncode == 2:
            raise UsageError(said[0])
        raise InfrastructureError("start", f"{' '.join(overrides)}: {said[0]}")
    (folder / "overrides.json").write_text(json.dumps(list(overrides)), encoding="utf-8")
    return _summary(folder)


def _summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def _finished(overrides: Sequence[str], folder: Path) -> dict[str, Any] | None:
    """What this very run came to, if it is there."""
    told = folder / "overrides.json"
    if not told.exists() or json.loads(told.read_text(encoding="utf-8")) != list(overrides):
        return None
    return _summary(folder)


def side_by_side(call: Callable[[T], R], of: Sequence[T]) -> list[R]:
    """`call` of each, as many at once as there are cores; in order."""
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return list(pool.map(call, of))


def made_by(module: str, arguments: Sequence[str]) -> str:
    """Head of a table: the command, and the commit that it ran at."""
    commit = _git("rev-parse", "--short=12", "HEAD") or "no git commit"
    changed = " (with changes that are not committed)" if _git("status", "--porcelain") else ""
    return (
        f"Made by `python -m {module} {' '.join(arguments)}` at {commit}{changed}.\n\n"
        "**VIRTUAL: every figure of a model is simulated, none is measured.**\n"
    )


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def settings(
    arguments: Sequence[str], known: Sequence[str], needed: Sequence[str], usage: str
) -> dict[str, str]:
    """KEY=VALUE arguments. Raises UsageError for an unknown or a missing key."""
    found: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in known:
            raise UsageError(f"{argument}: no such setting; there is: {', '.join(known)}")
        found[key] = value
    for key in needed:
        if not found.get(key):
            raise UsageError(f"{key}: missing; {usage}")
    return found


def summary_updates(folder: Path) -> list[dict[str, str]]:
    """The rows of updates.csv as they are."""
    import csv

    with (folder / "updates.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def recorded_config(folder: Path) -> dict[str, Any]:
    """What a run was configured with."""
    return yaml.safe_load((folder / ".hydra" / "config.yaml").read_text(encoding="utf-8"))
