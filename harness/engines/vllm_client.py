"""The Engine protocol over vLLM in a worker process; imports neither vLLM nor torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.cluster.local import Worker, WorkerEnded, WorkerError
from harness.cluster.protocol import MakeWorker
from harness.engines.client import EngineClient
from harness.engines.vllm_options import VllmOptions

_DEAD = "EngineDeadError"  # what vLLM raises once its EngineCore process is gone


class VllmEngineClient(EngineClient):
    """Awaited verbs of harness.engines.vllm_engine.VllmEngine in its own process."""

    TARGET = "harness.engines.vllm_engine:VllmEngine"

    def __init__(
        self,
        options: VllmOptions,
        *,
        affinity: Sequence[int] | None = None,
        name: str = "engine/0",
        worker: MakeWorker = Worker,
    ) -> None:
        self._name = name
        given = {"options": options, "name": name}
        super().__init__(
            worker(name, self.TARGET, given, threads=options.threads, affinity=affinity)
        )

    async def _call(self, verb: str, *args: Any) -> Any:
        """Raises WorkerEnded for a dead EngineCore too: as little is left of the engine."""
        try:
            return await super()._call(verb, *args)
        except WorkerError as error:
            if isinstance(error, WorkerEnded) or _DEAD not in str(error).partition("\n")[0]:
                raise
            raise WorkerEnded(f"{self._name}: vLLM's EngineCore process ended") from None
