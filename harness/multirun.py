"""What a multirun shares: its folder and its parent run, set up before its jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

_CLEAN_UP_LIMIT_S = 60.0

_RUNNING = ".running-"
_WORKERS = ("LokyProcess", "submitit.local._local")  # of launchers on this machine

_current: Multirun | None = None


def current() -> Multirun | None:
    """The multirun of this process; None for a single run and inside a sweep's worker process."""
    return _current


@contextlib.contextmanager
def under_way(folder: Path) -> Iterator[None]:
    """Mark a sweep's job, until all its clean-up is done, for the process that leads the sweep."""
    mark = folder.with_name(f"{_RUNNING}{folder.name}")
    mark.touch()
    try:
        yield
    finally:
        mark.unlink()


def pass_on(signum: int) -> None:
    """Give the signal to a sweep's worker processes and wait until their jobs have cleaned up: what
    is told to end a sweep is this process alone."""
    import psutil

    if _current is None:
        return
    children = [(p, " ".join(p.cmdline())) for p in psutil.Process().children()]
    workers = [p for p, command in children if any(name in command for name in _WORKERS)]
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.send_signal(signum)
    deadline_s = time.monotonic() + _CLEAN_UP_LIMIT_S
    while workers and _current.unfinished and time.monotonic() < deadline_s:
        time.sleep(0.1)


class Multirun(Callback):
    """Hydra's callback. `folders` are the jobs' folders in order of their numbers."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._parent: Any = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        global _current
        _current = self
        self._folder = Path(config.hydra.sweep.dir).absolute()
        from harness.composition import build
        from harness.tracking import open_parent

        self._parent = open_parent(build(config), self._folder.name)

    @property
    def folders(self) -> list[Path]:
        if self._folder is None:
            return []
        jobs = [path for path in self._folder.iterdir() if path.is_dir()]
        return sorted(
            (path for path in jobs if path.name.split("_")[0].isdigit()),
            key=lambda path: int(path.name.split("_")[0]),
        )

    @property
    def unfinished(self) -> bool:
        """Whether a job is under way, in whatever process."""
        return self._folder is not None and any(self._folder.glob(f"{_RUNNING}*"))

    def close(self, status: str) -> None:
        """End the parent run as finished, interrupted or failed."""
        if self._parent is not None:
            self._parent.close(status)
