"""Worker processes on this machine: learner and engine never share an interpreter lock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from typing import Any

from harness.cluster import memory, protocol
from harness.cluster.protocol import WorkerEnded, WorkerError
from harness.protocols import SandboxProvider, UsageError

__all__ = ["LocalCluster", "Worker", "WorkerEnded", "WorkerError"]


def environment(threads: int) -> dict[str, str]:
    """Of a worker process that computes with so many threads, beside what it inherits."""
    counted = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {
        **memory.ENVIRONMENT,
        **dict.fromkeys(counted, str(threads)),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        "TOKENIZERS_PARALLELISM": "false",
    }


class Worker:
    """One process with one service object, called from asyncio; many calls may be in flight."""

    def __init__(
        self,
        name: str,
        target: str,
        kwargs: dict[str, Any],
        *,
        threads: int,
        affinity: Sequence[int] | None = None,
    ) -> None:
        self.name = name
        self._target, self._kwargs = target, kwargs
        self._threads, self._affinity = threads, affinity
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._dead: str | None = None

    async def start(self) -> None:
        """Start the process and wait until its service object is built."""
        ours, theirs = Pipe()
        env = os.environ | environment(self._threads)
        if self._affinity is not None:
            env["HARNESS_WORKER_AFFINITY"] = ",".join(map(str, self._affinity))
        os.set_inheritable(theirs.fileno(), True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.cluster.worker", str(theirs.fileno())],
            env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=sys.stderr,
        )  # fmt: skip
        theirs.close()
        self._connection = ours
        ours.send((self._target, self._kwargs))
        self._loop = asyncio.get_running_loop()
        self._pending[0] = self._loop.create_future()
        self._loop.add_reader(ours.fileno(), self._readable)
        await self._pending[0]

    @property
    def pid(self) -> int:
        return self._process.pid

    async def call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Call a verb of the service. Raises WorkerError if it raises or the process is gone."""
        if self._dead is not None:
            raise WorkerEnded(self._dead)
        self._number += 1
        future: asyncio.Future[Any] = self._loop.create_future()
        self._pending[self._number] = future
        try:
            self._connection.send((self._number, verb, args, kwargs))
        except (BrokenPipeError, ConnectionError, OSError):
            self._lost()
        return await future

    def _readable(self) -> None:
        try:
            while self._connection.poll(0):
                number, kind, value = self._connection.recv()
                future = self._pending.pop(number, None)
                if future is None or future.done():
                    continue
                if kind == "ok":
                    future.set_result(value)
                else:
                    future.set_exception(self._error(*value))
        except (EOFError, ConnectionError, OSError):
            self._lost()

    def _error(self, name: str, message: str, trace: str) -> Exception:
        """What the worker raised: a wrong setting stays one, anything else comes with its trace."""
        if name == UsageError.__name__:
            return UsageError(message)
        return WorkerError(f"{self.name}: {name}: {message}\n--- in the worker ---\n{trace}")

    def _lost(self) -> None:
        self._loop.remove_reader(self._connection.fileno())
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)  # its pipe closes a moment before it can be reaped
        code = self._process.returncode
        self._dead = f"{self.name}: the worker process ended (exit code {code})"
        for future in self._pending.values():
            if not future.done():
                future.set_exception(WorkerEnded(self._dead))
        self._pending.clear()

    async def close(self) -> None:
        """Ask the process to end, then make sure. Idempotent."""
        process = getattr(self, "_process", None)
        if process is None:
            return
        if self._dead is None and process.poll() is None:
            with contextlib.suppress(WorkerError, TimeoutError):
                await asyncio.wait_for(self.call("__close__"), timeout=2)
        self.kill()

    def kill(self) -> None:
        """End the process now; safe from signal handlers and after the loop is gone."""
        process = getattr(self, "_process", None)
        if process is None:
            return
        if self._dead is None:
            with contextlib.suppress(RuntimeError, OSError, ValueError):
                self._loop.remove_reader(self._connection.fileno())
            self._dead = f"{self.name}: closed"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        if process.poll() is None:
            process.kill()
            process.wait()
        self._connection.close()


class LocalCluster:
    """Worker processes and sandboxes of this machine."""

    name = "local"

    @property
    def worker(self) -> protocol.MakeWorker:
        return Worker

    async def share(self, path: str) -> str:
        """The file itself: every process is on this machine."""
        return path

    async def sandboxes(self, arguments: Mapping[str, Any]) -> SandboxProvider:
        from environments.sandbox.select import open_provider

        return await open_provider(**arguments)

    def facts(self) -> Mapping[str, Any]:
        return {"name": self.name}
