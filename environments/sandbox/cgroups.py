"""Limits for a group of processes through control groups (version 1 or 2), where they are writable.

Groups are made beside or below the harness's own; their names carry its pid and start time, so that
groups left behind by a killed harness are recognised and removed at the next start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "thundersync."
_CPU_PERIOD_US = 100_000


def process_start(pid: int) -> int | None:
    """Clock ticks after boot at which `pid` started; None where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[19])


@dataclass(frozen=True)
class Limits:
    memory_mb: int
    pids: int
    cpus: float


class Group:
    """The directories (one per version-1 controller, or one) that limit one sandbox."""

    def __init__(self, directories: dict[str, Path], version: int) -> None:
        self._directories = directories
        self.version = version

    @property
    def directories(self) -> Sequence[Path]:
        return list(dict.fromkeys(self._directories.values()))

    @property
    def memory(self) -> Path:
        return self._directories["memory"]

    def ran_out_of_memory(self) -> bool:
        """Whether the group's own limit (not the machine's) made the kernel kill."""
        if (self.memory / "memory.events").exists():
            events = dict(line.split() for line in _lines(self.memory / "memory.events"))
            return int(events.get("oom", 0)) > 0
        kills = dict(line.split() for line in _lines(self.memory / "memory.oom_control"))
        failures = int((self.memory / "memory.failcnt").read_text())
        return int(kills.get("oom_kill", 0)) > 0 and failures > 0

    def kill(self) -> None:
        """SIGKILL to whatever is in the group."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in _lines(self.memory / "cgroup.procs"):
                os.kill(int(line), signal.SIGKILL)

    def remove(self) -> bool:
        """False where processes are still in it (or on their way out): try again."""
        for directory in self.directories:
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                return False
        return True


class Groups:
    """Where this process may make groups, and which controllers work there."""

    def __init__(self, parents: dict[str, Path], version: int) -> None:
        self.version = version
        self._parents = parents
        pid = os.getpid()
        self._prefix = f"{_PREFIX}{pid}.{process_start(pid)}."

    def make(self, name: str, limits: Limits) -> Group:
        name = self._prefix + name
        group = Group({key: path / name for key, path in self._parents.items()}, self.version)
        quota_us = int(limits.cpus * _CPU_PERIOD_US)
        memory_bytes = str(limits.memory_mb << 20)
        try:
            for directory in group.directories:
                directory.mkdir()
            if self.version == 2:
                files = [
                    ("memory", "memory.max", memory_bytes),
                    ("memory", "memory.swap.max", "0"),
                    ("pids", "pids.max", str(limits.pids)),
                    ("cpu", "cpu.max", f"{quota_us} {_CPU_PERIOD_US}"),
                ]
            else:
                files = [
                    ("memory", "memory.limit_in_bytes", memory_bytes),
                    ("memory", "memory.memsw.limit_in_bytes", memory_bytes),
                    ("pids", "pids.max", str(limits.pids)),
                    ("cpu", "cpu.cfs_quota_us", str(quota_us)),
                ]
            for controller, file, value in files:
                directory = group._directories.get(controller)
                if directory is not None and (directory / file).exists():
                    (directory / file).write_text(value)
        except OSError:
            group.remove()
            raise
        return group

    def left(self) -> list[Path]:
        """This process's groups that still exist."""
        parents = set(self._parents.values())
        return [path for parent in parents for path in parent.glob(self._prefix + "*")]

    def reap(self) -> int:
        """Remove empty groups whose harness is gone; returns how many."""
        reaped = 0
        for parent in set(self._parents.values()):
            for directory in parent.glob(_PREFIX + "*"):
                _, pid, start, _ = directory.name.split(".", 3)
                if process_start(int(pid)) != int(start):
                    try:
                        directory.rmdir()
                    except OSError:
                        continue  # its processes are still dying; the next start takes it
                    reaped += 1
        return reaped


def find_groups() -> tuple[Groups | None, str]:
    """The usable control groups, or None and the reason why there are none."""
    own: dict[str, str] = {}
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        path = root / own.get("", "/").lstrip("/")
        for parent in (path, *path.parents):
            if parent == root.parent:
                break
            enabled = parent / "cgroup.subtree_control"
            if enabled.exists() and {"memory", "pids"} <= set(enabled.read_text().split()):
                return _probe(Groups(dict.fromkeys(("memory", "pids", "cpu"), parent), 2))
        return None, "no control group above this process hands on memory and pids"
    parents = {}
    for controller in ("memory", "pids", "cpu"):
        directory = root / controller / own.get(controller, "/").lstrip("/")
        if (directory / "cgroup.procs").exists():
            parents[controller] = directory
    if not {"memory", "pids"} <= parents.keys():
        return None, "no memory and pids control groups are mounted"
    return _probe(Groups(parents, 1))


def _probe(groups: Groups) -> tuple[Groups | None, str]:
    """Entering must work too: try it with a short-lived process."""
    try:
        group = groups.make("probe", Limits(memory_mb=64, pids=8, cpus=1.0))
    except OSError as error:
        return None, f"control groups are not writable ({error.strerror})"
    child = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", enter_script(group)],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)],
    )
    status = os.waitpid(child, 0)[1]
    while not group.remove():
        time.sleep(0.001)
    if status != 0:
        return None, "control groups cannot be entered"
    return groups, f"control groups version {groups.version}"


def enter_script(group: Group) -> str:
    """Shell text that moves its own shell into the group."""
    files = (shlex.quote(str(directory / "cgroup.procs")) for directory in group.directories)
    return " && ".join(f"echo $$ >{file}" for file in files)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
