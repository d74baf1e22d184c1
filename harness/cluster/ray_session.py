"""This process's connection to Ray: to a cluster that is there, or to one that is made for the run
and ended with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from environments.sandbox.ownership import folder_prefix, reap_folders
from harness.cluster.ray_api import load_ray
from harness.protocols import UsageError

_STORE_BYTES = 200 << 20
# Of a session's folder. A path of a socket has 107 characters at most, and Ray adds as many as in
# /session_2026-11-30_14-05-04_123456_4194304/sockets/plasma_store
_LONGEST = 43
_REACH_S = 3.0
_END_S = 10.0
_SETTINGS = {
    # No worker is killed because others take memory: none is without Ray.
    "memory_monitor_refresh_ms": 0,
    # Ray's own default would let every other process go before engine and learner.
    "worker_niceness": 0,
}


class Session:
    """`open` and `close` are for the main thread: Ray takes SIGTERM over where it connects, and it
    is given back at once. Whatever Ray prints goes to standard error."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._folder: Path | None = None
        self._opened = False
        self._before: set[psutil.Process] = set()  # Ray's, of this process, and not ours
        self._stack = contextlib.ExitStack()

    @property
    def own(self) -> bool:
        return self._address is None

    def open(self, cpus: float, gpus: float, sandboxes: int) -> None:
        """Raises UsageError where no cluster answers at the address, or none of our own starts. The
        folders of dead runs are removed."""
        if self._address is not None:
            _reach(self._address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing leaves the machine
        ray = load_ray()

        quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        self._stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        handler = signal.getsignal(signal.SIGTERM)
        try:
            if self._address is not None:
                self._opened = True
                ray.init(address=self._address, **quiet)
                return
            self._before = _rays_children()
            folder = _folder()
            reap_folders(folder.parent)
            folder.mkdir(mode=0o700)
            self._folder = folder
            self._opened = True
            ray.init(
                num_cpus=int(-(-cpus // 1)),
                num_gpus=int(gpus),
                resources={"sandbox": float(sandboxes)} if sandboxes else None,
                object_store_memory=_STORE_BYTES,
                include_dashboard=False,
                _temp_dir=str(folder),
                _system_config=_SETTINGS,
                **quiet,
            )
        except (OSError, ValueError, RuntimeError) as error:
            line = " ".join(str(error).split())
            if self.own:
                raise UsageError(f"cluster=ray: none of this run's own starts: {line}") from error
            raise UsageError(
                f"cluster.address={self._address}: cannot be used: {line}; start a cluster with "
                "ray start --head, or leave the address null for one of this run's own"
            ) from error
        finally:
            with contextlib.suppress(ValueError):  # not the main thread: nothing was taken
                signal.signal(signal.SIGTERM, handler)

    def close(self) -> None:
        """Disconnect; of a cluster of our own no process and no file is left. Idempotent."""
        if self._opened:
            ray = load_ray()

            self._opened = False
            ours = _rays_children() - self._before if self.own else set()
            ray.shutdown()
            _end(ours)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
            reap_folders()  # of its actors: Ray ends them where they are
        self._stack.close()


def _reach(address: str) -> None:
    """Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_REACH_S):
            pass
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cluster.address={address}: no Ray cluster answers there ({error}); write HOST:PORT "
            "of its head node, or leave it null for one of this run's own"
        ) from error


def _folder() -> Path:
    """For the session's files: its own, it is removed as a whole. Its name says whose it is."""
    name = folder_prefix("ray").removesuffix(".")
    path = Path(tempfile.gettempdir()) / name
    return path if len(str(path)) <= _LONGEST else Path("/tmp") / name


def _rays_children() -> set[psutil.Process]:
    """The processes of clusters that this process has started."""
    return {p for p in psutil.Process().children(recursive=True) if _is_rays(p)}


def _is_rays(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        line = " ".join(process.cmdline())
        return line.startswith("ray::") or "/ray/" in line
    return False


def _end(processes: set[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=_END_S)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=_END_S)


def room(alive: Callable[[], list[dict[str, Any]]]) -> Mapping[str, float]:
    """Node id -> the sandboxes that a node that is alive says it has room for."""
    return {
        node["NodeID"]: node["Resources"]["sandbox"]
        for node in alive()
        if node["Alive"] and node["Resources"].get("sandbox", 0) >= 1
    }
