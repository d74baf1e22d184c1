"""The seam that cluster=NAME fills: processes with one service each, and sandboxes. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from environments.protocols import SandboxProvider


class WorkerError(RuntimeError):
    """A worker raised, or died; the message carries the worker's own words."""


class WorkerEnded(WorkerError):
    """The process is gone: where several fail together, this is the cause."""


class Worker(Protocol):
    """One process with one service object (harness.cluster.worker says what that is), called from
    asyncio; many calls may be in flight, and they begin in the order of asking."""

    name: str

    async def start(self) -> None:
        """Start the process and wait until its service object is built. Raises UsageError as the
        service does, WorkerError otherwise."""
        ...

    @property
    def pid(self) -> int: ...

    async def call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Call a verb of the service. Raises UsageError where it does, WorkerError where it raises
        anything else, WorkerEnded where the process is gone."""
        ...

    async def close(self) -> None:
        """End the process. Idempotent."""
        ...


class MakeWorker(Protocol):
    """A worker that is not started yet. Its name says what it is: engine/0, learner/1."""

    def __call__(
        self,
        name: str,
        target: str,
        kwargs: dict[str, Any],
        *,
        threads: int,
        affinity: Sequence[int] | None = None,
    ) -> Worker: ...


class Cluster(Protocol):
    """Where a run's processes and sandboxes are."""

    name: str

    @property
    def worker(self) -> MakeWorker: ...

    async def share(self, path: str) -> Any:
        """A file of weights as the engine's replicas are handed it: the first argument of a call
        that a worker turns into a path on its own machine."""
        ...

    async def sandboxes(self, arguments: Mapping[str, Any]) -> SandboxProvider:
        """A provider as environments.sandbox.select.open_provider makes it of these arguments."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """What is where, for the manifest."""
        ...
