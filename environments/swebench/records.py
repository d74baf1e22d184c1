"""Reads the records of a data set that lies on this machine: a file, a task repository, or a
Hugging Face data set in the local cache. Nothing is ever fetched here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.protocols import UsageError

VERIFIED = "SWE-bench/SWE-bench_Verified"
ALIASES = {"verified": VERIFIED}
SUFFIXES = (".json", ".jsonl", ".parquet")
_HUGGING_FACE = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_CONFIG_FILE = "sweb.yaml"  # of a task repository


@dataclass(frozen=True)
class Records:
    """`rows` are (where it stands, record); `folders` maps an instance to its task folder, the
    context that its Dockerfile is built in; `broken` has a line for each row that cannot be read.
    """

    rows: list[tuple[str, dict[str, Any]]]
    folders: Mapping[str, Path]
    broken: list[str]


def names_records(dataset: str) -> bool:
    """Whether `env.dataset` names a file, a folder or a Hugging Face data set."""
    return (
        dataset in ALIASES
        or dataset.endswith(SUFFIXES)
        or Path(dataset).expanduser().is_dir()
        or _HUGGING_FACE.fullmatch(dataset) is not None
    )


def read_records(dataset: str, data_dir: str | None) -> Records:
    """Raises UsageError, one line, where there is nothing to read, with what to fetch and how."""
    path = Path(dataset).expanduser()
    if dataset.endswith(SUFFIXES):
        if not path.is_file():
            raise UsageError(f"env.dataset={dataset}: no such file (looked from {Path.cwd()})")
        return _cleaned(dataset, _read_file(dataset, path))
    if path.is_dir():
        return _task_repository(dataset, path)
    return _hugging_face(ALIASES.get(dataset, dataset), data_dir)


def _cleaned(where: str, rows: Iterator[Any] | list[Any]) -> Records:
    good: list[tuple[str, dict[str, Any]]] = []
    broken: list[str] = []
    for number, row in enumerate(rows, 1):
        label = f"{where} row {number}"
        if isinstance(row, Mapping):
            good.append((label, {str(k): v for k, v in row.items() if not _missing(v)}))
        else:
            broken.append(f"{label}: must be an object with SWE-bench's fields, not {row!r:.40}")
    return Records(good, {}, broken)


def _missing(value: Any) -> bool:
    """None, or the NaN that a table has where a row lacks a column."""
    return value is None or (isinstance(value, float) and value != value)


def _read_file(dataset: str, path: Path) -> list[Any]:
    try:
        if path.suffix == ".parquet":
            return _read_parquet(path)
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        rows = json.loads(text)
    except (OSError, ValueError) as error:  # damaged parquet and JSON, undecodable text
        reason = " ".join(str(error).split())[:120]
        raise UsageError(f"env.dataset={dataset}: cannot be read ({reason})") from error
    if isinstance(rows, Mapping):
        rows = list(rows.values())
    if not isinstance(rows, list):
        raise UsageError(f"env.dataset={dataset}: must hold a list of instances")
    return rows


def _read_parquet(path: Path) -> list[Any]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


def _task_repository(dataset: str, path: Path) -> Records:
    """swebench's own reader, task by task, so that one broken task does not cost the others."""
    if not (path / _CONFIG_FILE).is_file():
        raise UsageError(
            f"env.dataset={dataset}: no {_CONFIG_FILE} in this folder; give a task repository of "
            f"swebench 5 ({_CONFIG_FILE} and tasks/), or a file ending in {', '.join(SUFFIXES)}"
        )
    from swebench.task.repo import load_task, tasks_root
    from yaml import YAMLError

    rows, folders, broken = [], {}, []
    try:
        root = tasks_root(path)
    except FileNotFoundError as error:
        raise UsageError(f"env.dataset={dataset}: {error}") from error
    for folder in sorted(f for f in root.iterdir() if f.is_dir()):
        where = f"{dataset} task {folder.name!r}"
        try:
            record = load_task(folder)
        except FileNotFoundError as error:
            broken.append(f"{where}: the file {Path(error.filename).name} is missing")
        except (YAMLError, ValueError, TypeError, AttributeError) as error:
            broken.append(f"{where}: cannot be read ({' '.join(str(error).split())[:120]})")
        else:
            rows.append((where, {k: v for k, v in record.items() if not _missing(v)}))
            folders[folder.name] = folder
    return Records(rows, folders, broken)


def _hugging_face(name: str, data_dir: str | None) -> Records:
    """The parquet files of a data set in the Hub's cache (`data_dir`: another cache folder)."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    fetch = f"hf download {name} --repo-type dataset"
    if data_dir:
        fetch += f" --cache-dir {data_dir}"
    try:
        folder = Path(
            snapshot_download(name, repo_type="dataset", cache_dir=data_dir, local_files_only=True)
        )
    except (LocalEntryNotFoundError, ValueError, OSError) as error:
        raise UsageError(
            f"env.dataset={name}: not in the local Hugging Face cache, and nothing is fetched at "
            f"run time; fetch it once, where there is a network: {fetch}"
        ) from error
    rows: list[tuple[str, dict[str, Any]]] = []
    broken: list[str] = []
    for path in sorted(folder.rglob("*.parquet")):
        read = _cleaned(f"{name} {path.name}", _read_file(name, path))
        split = re.split(r"[-.]", path.name)[0]
        rows += [(where, {"split": split, **record}) for where, record in read.rows]
        broken += read.broken
    if not rows:
        raise UsageError(
            f"env.dataset={name}: the copy in {folder} has no readable parquet file; fetch it "
            f"again: {fetch}"
        )
    return Records(rows, {}, broken)
