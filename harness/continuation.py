"""Which run goes on, and from which of its checkpoints: the key `resume`.

A run goes on in its own folder. `resume=DIR` names it, or one of its checkpoints; `resume=auto`
means whatever lies in the folder that the run was given: in a sweep of a given folder, each job's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import checkpoint
from harness.checkpoint import Damaged
from harness.config import Config
from harness.protocols import UsageError

AUTO = "auto"
LOGS = ("updates.csv", "trajectories.jsonl", "evaluation.jsonl", "learner.jsonl", "timeline.jsonl")
# Where a run writes and how often it is saved: what it computes does not depend on it.
_FREE = ("resume", "checkpoint.", "tracking.")
_SHOWN = 3


@dataclass(frozen=True)
class Resumption:
    """A checkpoint that was verified. `replayed`: under virtual time a run whose rollouts go on
    across updates is played again up to it, and compared with it there."""

    folder: Path
    state: Mapping[str, Any]
    logs: Mapping[str, Mapping[str, Any]]
    replayed: bool

    @property
    def update(self) -> int:
        return self.state["update"]


def settings(config: Config) -> dict[str, Any]:
    """What may not differ, as JSON gives it back: dotted key -> value."""
    return _flat(json.loads(json.dumps(dataclasses.asdict(config), default=str)))


def _flat(found: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in found.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            flat |= _flat(value, f"{key}.")
        elif not key.startswith(_FREE):
            flat[key] = value
    return flat


def run_folder(resume: str) -> Path:
    """The folder of the run that `resume` names. Raises UsageError where there is none."""
    path = Path(resume).expanduser()
    if path.name.startswith("update-") and path.parent.name == "checkpoints":
        path = path.parent.parent
    if not path.is_dir():
        raise UsageError(f"resume={resume}: no such folder (looked from {Path.cwd()})")
    return path


def finished(config: Config, folder: Path) -> dict[str, Any] | None:
    """The summary of a run of this configuration that has ended well; None of any other. Raises
    UsageError where a run of another configuration lies there."""
    try:
        summary = json.loads((folder / "summary.json").read_bytes())
        recorded = _flat(json.loads((folder / "manifest.json").read_bytes())["config"])
    except (OSError, ValueError, KeyError):
        return None
    if summary.get("status") != "finished":
        return None
    _same(config, recorded, f"the run in {folder}", "another folder, or resume=null")
    return summary


def find(config: Config, folder: Path, say: Callable[[str], None]) -> Resumption | None:
    """The checkpoint to go on from; None where the run begins at the beginning, which
    `resume=auto` allows. Raises UsageError, one line, for a checkpoint that is damaged or of
    another configuration."""
    resume = config.resume
    if resume is None:
        return None
    there = checkpoint.listed(folder)
    if resume == AUTO:
        return _newest(config, folder, there, say)
    if run_folder(resume).resolve() != folder.resolve():
        raise UsageError(
            f"hydra.run.dir={folder}: resume={resume} goes on in its own folder; leave "
            "hydra.run.dir out"
        )
    named = Path(resume).expanduser()
    if named.resolve() != folder.resolve():
        there = [path for path in there if path.name <= named.name]
        if not there or there[0].name != named.name:
            raise UsageError(f"resume={resume}: no such checkpoint; {_older(folder, there)}")
    if not there:
        raise UsageError(
            f"resume={resume}: no checkpoint in it; a run makes them with checkpoint.every=1"
        )
    try:
        return _open(config, there[0], folder)
    except Damaged as damaged:
        raise UsageError(
            f"resume={resume}: checkpoint {there[0].name} is damaged: {damaged}; "
            f"{_older(folder, there[1:])}"
        ) from damaged


def _newest(
    config: Config, folder: Path, there: list[Path], say: Callable[[str], None]
) -> Resumption | None:
    for path in there:
        try:
            return _open(config, path, folder)
        except Damaged as damaged:
            say(f"resume=auto: checkpoint {path.name} is damaged: {damaged}; taking an older one")
    say(f"resume=auto: no checkpoint to go on from in {folder}: from the beginning")
    return None


def _open(config: Config, path: Path, folder: Path) -> Resumption:
    logs = checkpoint.verify(path, folder)
    state = checkpoint.load(path)
    _same(config, state["config"], f"checkpoint {path.name}", "the same settings again")
    return Resumption(path, state, logs, played_again(state, config))


@contextlib.contextmanager
def alone(config: Config, folder: Path) -> Iterator[None]:
    """One process at a time writes a run's checkpoints. Raises UsageError while another does."""
    if config.resume is None and not config.checkpoint.every:
        yield
        return
    with (folder / ".writing").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"resume={config.resume}: {folder} is being written by a run that is still alive"
            ) from None
        yield


def way_on(folder: Path, arguments: Sequence[str], sweep: bool) -> str:
    """For the line of a run that did not end well: its newest checkpoint and the command that goes
    on from it; `arguments` are those of the command that ended. Empty where there is none."""
    there = checkpoint.listed(folder)
    if not there:
        return ""
    if sweep:
        said = f"the sweep's command with hydra.sweep.dir={folder.parent} resume=auto"
    else:
        kept = [a for a in arguments if not a.startswith(("resume=", "hydra.run.dir="))]
        said = f"python -m harness.run {shlex.join([*kept, f'resume={folder}'])}"
    return f"go on from checkpoint {there[0].name}: {said}"


def played_again(state: Mapping[str, Any], config: Config) -> bool:
    """Whether a run of this state is not put back but played from its beginning: rollouts under way
    are no state that a file could hold, and in virtual time playing them again is exact."""
    return config.clock.kind == "virtual" and state["training"]["flow"] is not None


def _same(config: Config, recorded: Mapping[str, Any], what: str, way_out: str) -> None:
    here = settings(config)
    differ = [k for k in sorted({*here, *recorded}) if here.get(k) != recorded.get(k)]
    if differ:
        shown = ", ".join(f"{k}={here.get(k)} (there {recorded.get(k)})" for k in differ[:_SHOWN])
        more = f" and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
        raise UsageError(
            f"resume={config.resume}: {what} is of another configuration: {shown}{more}; "
            f"give {way_out}"
        )


def _older(folder: Path, there: list[Path]) -> str:
    for path in there:
        try:
            checkpoint.verify(path, folder)
        except Damaged:
            continue
        return f"the next older one is whole: resume={path}"
    return "no older one is whole: run it from the beginning"
