"""The MLflow store through its client: no global state, no network of its own, no git.

A run that was killed outright stays RUNNING in the store; whoever opens the store next on the same
machine sees that its process is gone and marks it KILLED.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.config import TrackingConfig

_DIGEST = 36  # characters that MLflow keeps of a data set's digest
_HOST, _PID, _BORN = "harness.host", "harness.pid", "harness.process_started"


def default_uri() -> str:
    """SQLite in the working directory."""
    return f"sqlite:///{Path.cwd() / 'mlflow.db'}"


def _host() -> str:
    """The machine and its boot: a process id means something only within both."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()}/{boot.read_text().strip() if boot.exists() else ''}"


def describe_process() -> dict[str, str]:
    """Tags that tell later whether the process that owns a run is still there."""
    import psutil

    process = psutil.Process()
    return {_HOST: _host(), _PID: str(process.pid), _BORN: f"{process.create_time():.2f}"}


def owner_is_gone(tags: Mapping[str, str]) -> bool:
    """Whether the process behind these tags has ended. False for other machines: unknown is not
    gone, except for this machine before its last boot."""
    import psutil

    host = tags.get(_HOST, "")
    if host.split("/")[0] != platform.node() or _PID not in tags:
        return False
    if host != _host():
        return True
    try:
        return f"{psutil.Process(int(tags[_PID])).create_time():.2f}" != tags[_BORN]
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def _alone(database: Path) -> Iterator[None]:
    """One process at a time: a fresh SQLite store crashes when two migrate it side by side."""
    import fcntl

    database.parent.mkdir(parents=True, exist_ok=True)
    with database.with_name(f"{database.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Store:
    """An open store and its experiment. Opening marks dead runs KILLED."""

    def __init__(self, tracking: TrackingConfig) -> None:
        os.environ.pop("MLFLOW_RUN_ID", None)  # inherited, it would name somebody else's run
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"  # of a server; JSON ends it
        os.environ["GIT_PYTHON_REFRESH"] = "quiet"
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        self.uri = uri = tracking.uri or default_uri()
        local = Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None
        with _alone(local) if local else contextlib.nullcontext():
            import logging

            logging.getLogger("alembic").setLevel(logging.WARNING)
            from mlflow import MlflowClient

            self._client = MlflowClient(tracking_uri=uri)
            artifacts = (local.parent / "mlartifacts").absolute().as_uri() if local else None
            found = self._client.get_experiment_by_name(tracking.experiment)
            self.experiment_id = (
                found.experiment_id
                if found
                else self._client.create_experiment(tracking.experiment, artifacts)
            )
            self._take_over()

    def _take_over(self) -> None:
        for run in self._client.search_runs(
            [e.experiment_id for e in self._client.search_experiments()],
            "attributes.status = 'RUNNING'",
        ):
            if owner_is_gone(run.data.tags):
                self.end(run.info.run_id, "KILLED", "interrupted")

    def start(self, name: str, tags: dict[str, str]) -> str:
        """A new run's id."""
        return self._client.create_run(self.experiment_id, tags=tags, run_name=name).info.run_id

    def go_on(self, run_id: str, tags: dict[str, str]) -> set[int] | None:
        """A run that has ended runs again; the steps that it has logged. None where there is no
        such run in this store."""
        from mlflow.exceptions import MlflowException

        try:
            history = self._client.get_metric_history(run_id, "update")
            self._client.update_run(run_id, status="RUNNING")
        except MlflowException:
            return None
        self.tags(run_id, tags)
        return {metric.step for metric in history}

    def params(self, run_id: str, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        self._client.log_batch(run_id, params=[Param(k, v[:6000]) for k, v in params.items()])

    def tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            self._client.set_tag(run_id, key, value)

    def metrics(self, run_id: str, step: int, metrics: Mapping[str, float]) -> None:
        """Of two values at one step the later one is the latest."""
        from mlflow.entities import Metric

        now_ms = time.time_ns() // 1_000_000
        batch: list[Any] = [Metric(k, v, now_ms, step) for k, v in metrics.items()]
        self._client.log_batch(run_id, metrics=batch)

    def artifacts(self, run_id: str, folder: Path) -> None:
        self._client.log_artifacts(run_id, str(folder))

    def inputs(self, run_id: str, found: Iterable[Mapping[str, str]]) -> None:
        """What a run was fed with: `name`, `split`, `sha256` and `context` of each data set."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                Dataset(
                    name=f"{one['name']}/{one['split']}",
                    digest=one["sha256"][:_DIGEST],
                    source_type="thundersync",
                    source=json.dumps(dict(one)),
                ),
                [InputTag("mlflow.data.context", one["context"])],
            )
            for one in found
        ]
        if inputs:
            self._client.log_inputs(run_id, datasets=inputs)

    def system_monitor(self, run_id: str) -> Any:
        """Logs the machine's load under `system/` from now on, in a thread of its own, until its
        `finish()`."""
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        monitor = SystemMetricsMonitor(run_id, tracking_uri=self.uri)
        monitor.start()
        return monitor

    def started_ns(self, run_id: str) -> int:
        """Of the run, since the epoch."""
        return self._client.get_run(run_id).info.start_time * 1_000_000

    def end(self, run_id: str, status: str, tag: str) -> None:
        self._client.set_tag(run_id, "status", tag)
        self._client.set_terminated(run_id, status)
