"""Tracking: the protocol, and which one a config asks for. MLflow itself is in mlflow_tracking."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from harness.config import Config


class Tracker(Protocol):
    """Where a run's figures go besides its folder. Never on a run's critical path."""

    def ready(self) -> None:
        """Wait until the store is open. Raises UsageError where it cannot be."""
        ...

    @property
    def run_id(self) -> str | None:
        """What the store calls the run; None without one."""
        ...

    def again(self, metrics: Mapping[int, Mapping[str, Any]]) -> None:
        """Of the steps of a run that goes on, log those that a crash kept from the store."""
        ...

    def update(self, step: int, metrics: Mapping[str, Any]) -> None:
        """One optimizer step's figures under `group/name` keys; only finite numbers are kept."""
        ...

    def close(self, status: str, summary: Mapping[str, Any], folder: Path) -> None:
        """Log the summary's figures and the folder, and end as finished, interrupted or failed."""
        ...


class NoTracker:
    """tracking=none."""

    run_id = None

    def ready(self) -> None:
        return

    def again(self, metrics: Mapping[int, Mapping[str, Any]]) -> None:
        return

    def update(self, step: int, metrics: Mapping[str, Any]) -> None:
        return

    def close(self, status: str, summary: Mapping[str, Any], folder: Path) -> None:
        return


def open_tracker(config: Config, name: str, run_id: str | None = None) -> Tracker:
    """The tracker of one run; MLflow opens in the background, `ready` waits for it. `run_id` is
    that of a run that goes on."""
    if config.tracking.name == "none":
        return NoTracker()
    from harness.mlflow_tracking import MlflowTracker

    return MlflowTracker(config, name, run_id)


def open_parent(config: Config, name: str) -> Any:
    """A multirun's parent run, with its store initialised once before jobs run side by side.
    None for tracking=none; otherwise an object with close(status)."""
    if config.tracking.name == "none":
        return None
    from harness.mlflow_tracking import ParentRun

    return ParentRun(config, name)
