"""The Engine protocol over vLLM in a worker process; imports neither vLLM nor torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.cluster.local import Worker, WorkerEnded, WorkerError
from harness.engines.vllm_options import VllmOptions
from harness.protocols import Completion, Generation, Interval

_DEAD = "EngineDeadError"  # what vLLM raises once its EngineCore process is gone


class VllmEngineClient:
    """Awaited verbs of harness.engines.vllm_engine.VllmEngine in its own process."""

    TARGET = "harness.engines.vllm_engine:VllmEngine"

    def __init__(
        self,
        options: VllmOptions,
        *,
        affinity: Sequence[int] | None = None,
        name: str = "engine/0",
    ) -> None:
        self._name = name
        self._worker = Worker(
            name,
            self.TARGET,
            {"options": options, "name": name},
            threads=options.threads,
            affinity=affinity,
        )

    async def start(self) -> None:
        await self._worker.start()

    @property
    def pid(self) -> int:
        return self._worker.pid

    async def generate(self, request: Generation) -> Completion:
        return await self._call("generate", request)

    async def release(self, session: str) -> None:
        await self._call("release", session)

    async def update_weights(self, path: str, version: int, in_flight: bool = True) -> None:
        await self._call("update_weights", path, version, in_flight)

    async def drain_intervals(self) -> list[Interval]:
        return await self._call("drain_intervals")

    async def close(self) -> None:
        await self._worker.close()

    async def _call(self, verb: str, *args: Any) -> Any:
        """Raises WorkerEnded for a dead EngineCore too: as little is left of the engine."""
        try:
            return await self._worker.call(verb, *args)
        except WorkerError as error:
            if isinstance(error, WorkerEnded) or _DEAD not in str(error).partition("\n")[0]:
                raise
            raise WorkerEnded(f"{self._name}: vLLM's EngineCore process ended") from None
