"""MLflow: one experiment, one run per job, children of a multirun's parent; SQLite by default.

All of MLflow lives in one thread of its own: importing it takes seconds, logging milliseconds, and
neither may delay an update.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.config import Config, flatten
from harness.mlflow_store import Store, describe_process
from harness.protocols import UsageError

log = logging.getLogger(__name__)

PARENT = "HARNESS_MLFLOW_PARENT"  # a multirun hands its run id to its jobs' processes
_LATE_TAGS = ("release_chosen", "release_why")  # known at the end
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


def numbers(value: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The finite numbers of a nested mapping, under `group/name` keys."""
    found: dict[str, float] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            found |= numbers(inner, f"{prefix}{key}/")
        elif (
            isinstance(inner, int | float) and not isinstance(inner, bool) and math.isfinite(inner)
        ):
            found[f"{prefix}{key}"] = float(inner)
    return found


def _tags(config: Config) -> dict[str, str]:
    return {
        "schedule": config.schedule.name,
        "release": str(config.schedule.release),
        "env": config.env.name,
        "clock": config.clock.kind,
        "seed": str(config.seed),
        "status": "running",
    }


def data_sets(config: Config, folder: Path) -> list[dict[str, str]]:
    """What the run trained on and was evaluated on, with the hashes of its manifest; none before
    there is one."""
    path = folder / "manifest.json"
    if not path.is_file():
        return []
    hashes = json.loads(path.read_text(encoding="utf-8")).get("data", {})
    contexts = {config.env.split: "training", config.env.eval_split: "evaluation"}
    return [
        {"name": f"{config.env.name}/{key.rpartition('/')[0]}", "split": split, "sha256": sha256,
         "context": context}
        for split, context in contexts.items()
        for key, sha256 in hashes.items()
        if key.rpartition("/")[2] == split
    ]  # fmt: skip


class MlflowTracker:
    """One job's run. What goes wrong later than `ready` is logged: the run's folder is whole."""

    def __init__(self, config: Config, name: str, run_id: str | None = None) -> None:
        self._config, self._name = config, name
        self.run_id = run_id
        self._logged: set[int] = set()  # steps of a run that goes on
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._open = threading.Event()
        self._error: Exception | None = None
        self._last_step = 0
        self._monitor: Any = None
        self._thread = threading.Thread(target=self._serve, name="mlflow", daemon=True)
        self._thread.start()

    def ready(self) -> None:
        self._open.wait()
        if self._error is not None:
            uri = self._config.tracking.uri or "the SQLite file mlflow.db"
            raise UsageError(
                f"tracking.uri={uri}: {self._error}; name another store, or take tracking=none"
            ) from self._error

    def again(self, metrics: Mapping[int, Mapping[str, Any]]) -> None:
        for step, found in metrics.items():
            if step not in self._logged:
                self.update(step, found)

    def update(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._last_step = max(self._last_step, step)
        self._work.put(("metrics", step, numbers(metrics)))

    def close(self, status: str, summary: Mapping[str, Any], folder: Path) -> None:
        final = numbers(summary)
        tags = {key: str(summary[key]) for key in _LATE_TAGS if key in summary}
        self._work.put(("close", status, final, tags, folder))
        self._thread.join()
        if self._error is not None:
            log.error("MLflow did not take everything (%s); the run's folder has it", self._error)

    def _serve(self) -> None:
        try:
            store = Store(self._config.tracking)
            tags = _tags(self._config) | describe_process()
            parent = os.environ.get(PARENT)
            tags |= {"mlflow.parentRunId": parent} if parent else {}
            steps = None if self.run_id is None else store.go_on(self.run_id, tags)
            if steps is not None and self.run_id is not None:
                run_id, self._logged = self.run_id, steps
            else:  # new, or in another store: then it says which run it goes on from
                tags |= {"resumed_from": self.run_id} if self.run_id else {}
                self.run_id = run_id = store.start(self._name, tags)
                params = {key: str(value) for key, value in flatten(self._config)}
                store.params(run_id, params)
        except Exception as error:
            self._error = error  # raised from ready() in the run's own thread
            self._open.set()
            return
        self._open.set()
        try:
            if self._config.tracking.system_metrics:
                self._monitor = store.system_monitor(run_id)
        except Exception as error:
            self._error = error
        while True:
            verb, *arguments = self._work.get()
            try:
                if verb == "metrics":
                    store.metrics(run_id, *arguments)
                    continue
                self._end(store, run_id, *arguments)
            except Exception as error:
                self._error = error
            if verb == "close":
                return

    def _end(
        self,
        store: Store,
        run_id: str,
        status: str,
        final: Mapping[str, float],
        tags: Mapping[str, str],
        folder: Path,
    ) -> None:
        """The run ends with its status even where its last figures or files cannot be stored."""
        try:
            if self._monitor is not None:
                self._monitor.finish()
            store.tags(run_id, tags)
            store.metrics(run_id, self._last_step, dict(final))
            store.inputs(run_id, data_sets(self._config, folder))
            store.artifacts(run_id, folder)
            if self._config.tracking.traces > 0:
                from harness.mlflow_traces import log_traces

                log_traces(store, run_id, folder, self._config.tracking.traces)
        finally:
            store.end(run_id, _STATUS[status], status)


class ParentRun:
    """A multirun's parent: made before the jobs, ended after them."""

    def __init__(self, config: Config, name: str) -> None:
        self._store = Store(config.tracking)
        self._run_id = self._store.start(name, {"multirun": "true"} | describe_process())
        os.environ[PARENT] = self._run_id

    def close(self, status: str) -> None:
        os.environ.pop(PARENT, None)
        self._store.end(self._run_id, _STATUS[status], status)
