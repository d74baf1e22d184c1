"""The Engine protocol over a worker process; torch-free, so the main process stays light."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.cluster.local import Worker
from harness.cluster.protocol import MakeWorker
from harness.cluster.protocol import Worker as AnyWorker
from harness.protocols import Completion, Generation, Interval


class EngineClient:
    """Awaited verbs of an engine that is a worker's service object."""

    def __init__(self, worker: AnyWorker) -> None:
        self._worker = worker

    async def start(self) -> None:
        await self._worker.start()

    @property
    def pid(self) -> int:
        return self._worker.pid

    async def generate(self, request: Generation) -> Completion:
        return await self._call("generate", request)

    async def release(self, session: str) -> None:
        await self._call("release", session)

    async def update_weights(self, path: Any, version: int, in_flight: bool = True) -> None:
        """`path` as the cluster shares it."""
        await self._call("update_weights", path, version, in_flight)

    async def drain_intervals(self) -> list[Interval]:
        return await self._call("drain_intervals")

    async def close(self) -> None:
        await self._worker.close()

    async def _call(self, verb: str, *args: Any) -> Any:
        return await self._worker.call(verb, *args)


class TorchEngineClient(EngineClient):
    """Awaited verbs of harness.engines.torch_engine.TorchEngine in its own process."""

    TARGET = "harness.engines.torch_engine:TorchEngine"

    def __init__(
        self,
        path: str | Path,
        *,
        slots: int,
        max_context: int,
        threads: int = 1,
        affinity: Sequence[int] | None = None,
        name: str = "engine/0",
        worker: MakeWorker = Worker,
    ) -> None:
        options: dict[str, Any] = {
            "path": str(path), "slots": slots, "max_context": max_context,
            "threads": threads, "name": name,
        }  # fmt: skip
        super().__init__(worker(name, self.TARGET, options, threads=threads, affinity=affinity))
