"""A checkpoint on disk: a folder that is there whole or not at all, and is checked before use.

`checkpoints/update-000012/` holds state.json, the learner's safetensors and checksums.json: the
SHA-256 of each of its files, and of the run's logs up to the moment at which it was taken. Nothing
in it executes when it is loaded.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FORMAT = 1
STATE = "state.json"
_CHECKSUMS = "checksums.json"
_PIECE = 1 << 20  # bytes


class Damaged(Exception):
    """Why a checkpoint is not what was written."""


class Digests:
    """SHA-256 of files that only grow; each byte is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[int, Any]] = {}

    def of(self, name: str) -> dict[str, Any]:
        """Size and digest of a file as it is now; what it grew by reaches the disk first."""
        size, digest = self._known.get(name, (0, hashlib.sha256()))
        with (self._folder / name).open("rb") as file:
            os.fsync(file.fileno())
            file.seek(size)
            while piece := file.read(_PIECE):
                digest.update(piece)
                size += len(piece)
        self._known[name] = size, digest
        return {"bytes": size, "sha256": digest.hexdigest()}


def name_of(update: int) -> str:
    return f"update-{update:06d}"


def listed(run: Path) -> list[Path]:
    """A run's checkpoints, the newest first; damaged or not."""
    return sorted((p for p in (run / "checkpoints").glob("update-*") if p.is_dir()), reverse=True)


def begin(run: Path, update: int) -> Path:
    """A folder to write into, which is no checkpoint yet."""
    part = run / "checkpoints" / f".{name_of(update)}.{os.getpid()}"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def commit(part: Path, run: Path, update: int, logs: Mapping[str, Mapping[str, Any]]) -> Path:
    """Make what was written into `part` a checkpoint: everything has reached the disk before it
    gets its name. `logs` are sizes and digests of files of the run's folder."""
    digests = Digests(part)
    files = {path.name: digests.of(path.name) for path in sorted(part.iterdir())}
    content = {"format": FORMAT, "files": files, "logs": dict(logs)}
    _write(part / _CHECKSUMS, json.dumps(content | {"seal": _seal(content)}, indent=1) + "\n")
    _settle(part)
    target = run / "checkpoints" / name_of(update)
    if target.exists():  # of a run that went on from an older one
        target.rename(old := part.with_name(f"{part.name}.old"))
        shutil.rmtree(old)
    part.rename(target)
    _settle(target.parent)
    return target


def keep(run: Path, count: int) -> None:
    """Remove all but the newest, and what was never finished."""
    for folder in [*listed(run)[count:], *(run / "checkpoints").glob(".update-*")]:
        shutil.rmtree(folder)


def discard(run: Path, newer_than: Path | None) -> None:
    """Remove the checkpoints of a future that will not be; all where there is nothing to go on
    from."""
    for folder in listed(run):
        if newer_than is None or folder.name > newer_than.name:
            shutil.rmtree(folder)


def verify(folder: Path, run: Path) -> Mapping[str, Mapping[str, Any]]:
    """Check every file of a checkpoint and every log that it goes on from; returns the logs' sizes
    and digests. Raises Damaged."""
    try:
        content = json.loads((folder / _CHECKSUMS).read_bytes())
        seal = content.pop("seal")
        files, logs, version = content["files"], content["logs"], content["format"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{_CHECKSUMS} cannot be read ({type(error).__name__})") from error
    if seal != _seal(content):
        raise Damaged(f"{_CHECKSUMS} is not what was written")
    if version != FORMAT:
        raise Damaged(f"format {version}; this version reads {FORMAT}")
    for name, known in files.items():
        _check(folder / name, known, name)
    for name, known in logs.items():
        _check(run / name, known, name, grows=True)
    return logs


def _check(path: Path, known: Mapping[str, Any], name: str, grows: bool = False) -> None:
    if not path.is_file():
        raise Damaged(f"{name} is missing")
    size = path.stat().st_size
    if size < known["bytes"] or (size > known["bytes"] and not grows):
        raise Damaged(f"{name} has {size} bytes instead of {known['bytes']}")
    digest, left = hashlib.sha256(), known["bytes"]
    with path.open("rb") as file:
        while left and (piece := file.read(min(_PIECE, left))):
            digest.update(piece)
            left -= len(piece)
    if digest.hexdigest() != known["sha256"]:
        raise Damaged(f"{name} is not what was written: its checksum differs")


# -- JSON in which every float comes back as it was ------------------------------------------------


def dump(path: Path, value: Any) -> None:
    """Strict JSON; floats that are not finite go in words."""
    _write(path, json.dumps(_spelt(value), separators=(",", ":"), allow_nan=False))


def load(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint that was verified."""
    return json.loads((folder / STATE).read_bytes(), object_hook=_number)


def _spelt(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, Mapping):
        return {str(key): _spelt(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_spelt(inner) for inner in value]
    return value


def _number(found: dict[str, Any]) -> Any:
    return float(found["float"]) if found.keys() == {"float"} else found


# -- files -----------------------------------------------------------------------------------------


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _settle(folder: Path) -> None:
    """Names in a folder reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def cut(run: Path, logs: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> None:
    """Shorten logs to what they were when a checkpoint was taken; one that it does not know was
    begun later."""
    for name in names:
        path = run / name
        if path.exists():
            os.truncate(path, logs[name]["bytes"] if name in logs else 0)
