"""Sandboxes of the machine that a host process is on, as a worker's service.

Answers are ("ok", value) or what was raised, in plain values: an InfrastructureError does not
survive being pickled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Mapping
from typing import Any

from environments.protocols import InfrastructureError, Sandbox, SandboxProvider, SandboxSpec

Answer = tuple[Any, ...]


class SandboxService:
    """One provider (environments.sandbox.select), and the sandboxes that it has started."""

    def __init__(self) -> None:
        self._provider: SandboxProvider | None = None
        self._living: dict[str, Sandbox] = {}

    async def open(self, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """(kind, why). Raises UsageError where this machine can run none."""
        from environments.sandbox.select import open_provider

        self._provider = await open_provider(**arguments)
        return self._provider.kind, self._provider.why

    async def start_sandbox(self, spec: SandboxSpec) -> Answer:
        """(id, whether its files are the image's)."""
        assert self._provider is not None
        return await _told(self._start(self._provider, spec))

    async def _start(self, provider: SandboxProvider, spec: SandboxSpec) -> tuple[str, bool]:
        sandbox = await provider.start(spec)
        self._living[sandbox.sandbox_id] = sandbox
        return sandbox.sandbox_id, sandbox.from_image

    async def ask(self, sandbox_id: str, verb: str, *args: Any, **kwargs: Any) -> Answer:
        """A verb of the Sandbox protocol."""
        sandbox = self._living.get(sandbox_id)
        if sandbox is None:
            return "infrastructure", "exec_transport", f"{sandbox_id} was stopped"
        answer = await _told(getattr(sandbox, verb)(*args, **kwargs))
        if verb == "stop" and answer[0] == "ok":
            self._living.pop(sandbox_id, None)
        return answer

    async def shut(self) -> dict[str, int]:
        """Stop what is left; the provider's whole account."""
        if self._provider is None:
            return {}
        await self._provider.close()
        return dataclasses.asdict(self._provider.counters)


async def _told(work: Awaitable[Any]) -> Answer:
    try:
        return "ok", await work
    except InfrastructureError as error:
        return "infrastructure", error.kind, str(error).removeprefix(f"{error.kind}: ")
    except OSError as error:
        return "os", error.errno, error.strerror or str(error)


def value(answer: Answer) -> Any:
    """The other end of it: the value, or what was raised."""
    kind, *rest = answer
    if kind == "infrastructure":
        raise InfrastructureError(*rest)
    if kind == "os":
        raise OSError(*rest)
    return rest[0]
