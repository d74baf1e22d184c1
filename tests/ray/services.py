"""Services for actors, loaded by name in the actor."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.protocols import Interval, UsageError


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
