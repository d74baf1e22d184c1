"""A sandbox on a host: what its user holds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from environments.protocols import ExecResult, InfrastructureError
from environments.sandbox.places import Place
from harness.cluster.lives import Life
from harness.cluster.protocol import Worker
from harness.cluster.sandbox_service import value

if TYPE_CHECKING:
    from harness.cluster.hosted import HostedSandboxes


@dataclass(eq=False)
class HostLife(Life):
    """With the account of what it started."""

    worker: Worker
    created: int = 0
    removed: int = 0


class HostedSandbox:
    """The Sandbox protocol over its host."""

    def __init__(
        self, sandbox_id: str, from_image: bool, life: HostLife, place: Place, all_: HostedSandboxes
    ) -> None:
        self.sandbox_id, self.from_image = sandbox_id, from_image
        self._life, self._place, self._all = life, place, all_
        self._stopping: asyncio.Task[None] | None = None

    async def exec(
        self, command: str, *, timeout_s: float, max_output_bytes: int = 65536
    ) -> ExecResult:
        return await self._ask(
            "exec", command, timeout_s=timeout_s, max_output_bytes=max_output_bytes
        )

    async def put(self, files: Mapping[str, bytes], *, base: str | None = None) -> None:
        await self._ask("put", dict(files), base=base)

    async def get(self, path: str) -> bytes:
        return await self._ask("get", path)

    async def end_processes(self) -> None:
        await self._ask("end_processes")

    async def allow_hosts(self, hosts: Sequence[str]) -> None:
        await self._ask("allow_hosts", list(hosts))

    async def hand_over(self, folders: Sequence[str]) -> None:
        await self._ask("hand_over", list(folders))

    async def _ask(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        call = self._all.ask(self._life, "ask", self.sandbox_id, verb, *args, **kwargs)
        return value(await call)

    async def stop(self) -> None:
        """One whose host is gone has ended with it."""
        if self._stopping is None or (self._stopping.done() and self._stopping.exception()):
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        try:
            if self._life.alive:
                await self._ask("stop")
                self._life.removed += 1
                self._all.counters.removed += 1
        except InfrastructureError:
            if self._life.alive:
                raise
        finally:
            self._all.give(self._place, self)
