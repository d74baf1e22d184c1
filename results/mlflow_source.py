"""Runs of an MLflow experiment, from a local file or a server, through MLflow's own client.

A run's figures are its summary.json, an artifact; its files are fetched when a figure needs them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from results.load import LeftOut, Loaded, leaves, read, read_object
from results.runs import Run

_PAGE = 1000
_STATUS = {"RUNNING": "under way, or killed", "FAILED": "failed", "KILLED": "interrupted"}


def from_mlflow(name: str, uri: str) -> Loaded:
    """The runs of the experiment `name`; or of EXPERIMENT/PARENT, the children of the parent run of
    that name. Raises ValueError where there is no such experiment, or no store."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    local = uri.removeprefix("sqlite:///") if uri.startswith("sqlite:///") else None
    if local is not None and not Path(local).is_file():
        raise ValueError(f"uri={uri}: there is no such file")
    try:
        client = MlflowClient(tracking_uri=uri)
        found, parent = client.get_experiment_by_name(name), None
        if found is None and "/" in name:
            name, parent = name.rsplit("/", 1)
            found = client.get_experiment_by_name(name)
        if found is None:
            known = ", ".join(e.name for e in client.search_experiments())
            raise ValueError(f"runs={name}: no folder and no experiment of {uri} ({known})")
        runs = _all(client, found.experiment_id)
    except MlflowException as error:
        raise ValueError(f"uri={uri}: {str(error).splitlines()[0]}") from error
    loaded = Loaded(f"{name} of {uri}")
    parents = {r.info.run_id for r in runs if r.data.tags.get("multirun") == "true"}
    if parent is not None:
        of = {i for i in parents if i in {r.info.run_id for r in runs if _name(r) == parent}}
        if not of:
            raise ValueError(f"runs={name}/{parent}: no multirun of that name in {uri}")
        runs = [r for r in runs if r.data.tags.get("mlflow.parentRunId") in of]
    names = [_name(r) for r in runs]
    for run in sorted(runs, key=lambda r: r.info.start_time):
        if run.info.run_id in parents:
            continue
        called = _name(run)
        if names.count(called) > 1:
            called = f"{called} ({run.info.run_id[:8]})"
        one = _one(client, run, called)
        if isinstance(one, Run):
            loaded.runs.append(one)
        else:
            loaded.left_out.append(one)
    return loaded


def _name(run: Any) -> str:
    return run.info.run_name or run.info.run_id


def _all(client: Any, experiment: str) -> list[Any]:
    found, token = [], None
    while True:
        page = client.search_runs([experiment], max_results=_PAGE, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def _one(client: Any, run: Any, name: str) -> Run | LeftOut:
    from mlflow.exceptions import MlflowException

    if run.info.status != "FINISHED":
        why = _STATUS.get(run.info.status, run.info.status)
        return LeftOut(name, f"status {why}", under_way=run.info.status == "RUNNING")
    folder = _local(run)

    def artifact(name: str) -> Path:
        return folder / name if folder else Path(_download(client, run, name))

    try:
        text = artifact("summary.json").read_text(encoding="utf-8")
    except (OSError, MlflowException):
        return LeftOut(name, "no summary.json among its artifacts")
    one = read(name, text, partial(_fetch, client, run))
    if isinstance(one, Run):
        with contextlib.suppress(OSError, MlflowException):
            one.manifest = read_object(artifact("manifest.json"))
        config = one.manifest.get("config")
        params = {key: _plain(value) for key, value in run.data.params.items()}
        one.settings = dict(leaves(config)) if isinstance(config, Mapping) else params
    return one


def _plain(text: str) -> Any:
    """A parameter as the value it was written from, as far as labels need it."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"None": None, "True": True, "False": False}.get(text, text)


def _local(run: Any) -> Path | None:
    """The run's folder where its artifacts are files of this machine."""
    uri = urlparse(run.info.artifact_uri)
    if uri.scheme not in ("", "file"):
        return None
    path = Path(unquote(uri.path))
    return path if path.is_dir() else None


def _fetch(client: Any, run: Any) -> Path | None:
    """All files but the weights; a copy where they are on a server."""
    folder = _local(run)
    if folder is not None:
        return folder
    from mlflow.exceptions import MlflowException

    try:
        for item in client.list_artifacts(run.info.run_id):
            if not item.is_dir:
                _download(client, run, item.path)
    except MlflowException:
        return None
    return _copies() / run.info.run_id


def _download(client: Any, run: Any, name: str) -> str:
    there = _copies() / run.info.run_id
    there.mkdir(exist_ok=True)
    return client.download_artifacts(run.info.run_id, name, str(there))


@cache
def _copies() -> Path:
    """Where a server's files are copied to, for as long as this process lives."""
    there = tempfile.mkdtemp(prefix="results-")
    atexit.register(shutil.rmtree, there, ignore_errors=True)
    return Path(there)
