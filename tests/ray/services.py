"""Services for actors, loaded by name in the actor."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.protocols import Interval, UsageError


class Starter:
    """An asynchronous service, as vLLM's is: it may start processes of its own."""

    def __init__(self, log: str, fails: bool = False) -> None:
        self._log, self._fails = log, fails
        self._child: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        if self._fails:
            raise RuntimeError("no such model")
        child = self._child = subprocess.Popen(
            [sys.executable, "-c",
             "from harness.cluster.worker import end_with_worker; import time; end_with_worker();"
             "print(1, flush=True); time.sleep(600)"],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()

    async def pids(self) -> list[int]:
        """Its own, and that of what it has started."""
        assert self._child is not None
        return [os.getpid(), self._child.pid]

    async def read(self, path: str, version: int) -> tuple[bytes, int]:
        return Path(path).read_bytes(), version

    async def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            with Path(self._log).open("a") as file:
                file.write("close\n")


class Echo:
    """One verb of each kind that a service can have."""

    def __init__(self, said: str = "") -> None:
        if said == "usage":
            raise UsageError("said=usage: not available")
        self.said = said
        self.heard: list[int] = []
        self._waiting: list[tuple[Callable[[Any], None], Any]] = []

    def hear(self, number: int) -> list[int]:
        self.heard.append(number)
        return list(self.heard)

    def later(self, reply: Callable[[Any], None], value: Any) -> None:
        if value == "wrong":
            raise ValueError("a wrong request")
        self._waiting.append((reply, value))

    def has_work(self) -> bool:
        return bool(self._waiting)

    def work(self) -> None:
        """The latest first."""
        reply, value = self._waiting.pop()
        if value == "defect":
            raise RuntimeError("a defect")
        reply(value)

    async def wait(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    def block(self, seconds: float) -> None:
        time.sleep(seconds)

    def update_weights(self, path: str, version: int) -> tuple[bytes, int, list[str]]:
        file = Path(path)
        return file.read_bytes(), version, sorted(p.name for p in file.parent.iterdir())

    def drain_intervals(self) -> list[Interval]:
        now = time.monotonic()
        return [Interval("engine/0", "generate", now - 1.0, now)]
