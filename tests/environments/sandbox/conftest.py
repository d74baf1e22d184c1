"""Both kinds of sandbox behind one fixture, and a third: bubblewrap without control groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from environments.protocols import Sandbox, SandboxSpec
from environments.sandbox.bubblewrap import BubblewrapProvider
from environments.sandbox.images import MINI_IMAGE
from environments.sandbox.select import open_provider

SPEC = SandboxSpec(image=MINI_IMAGE, memory_mb=256, pids=64, scratch_mb=64)


class Backend:
    """Opens providers and sandboxes of one kind and checks that each leaves nothing behind."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind = name.partition("-")[0]

    async def open(self, max_parallel: int = 16, run_id: str = "tests") -> Any:
        provider = await open_provider(
            self.kind,  # type: ignore[arg-type]
            image=MINI_IMAGE,
            run_id=run_id,
            max_parallel=max_parallel,
        )
        if self.name.endswith("-watched"):
            assert isinstance(provider, BubblewrapProvider)
            provider.groups = None
        return provider

    @asynccontextmanager
    async def provider(self, max_parallel: int = 16) -> AsyncIterator[Any]:
        provider = await self.open(max_parallel)
        try:
            yield provider
        finally:
            await provider.close()
        assert provider.counters.leaked == 0
        assert provider.counters.created == provider.counters.removed

    def run(self, body: Callable[[Sandbox], Awaitable[Any]], **spec: Any) -> Any:
        """Run `body` with one fresh sandbox."""

        async def scenario() -> Any:
            async with self.provider() as provider:
                sandbox = await provider.start(replace(SPEC, **spec))
                return await body(sandbox)

        return asyncio.run(scenario())


@pytest.fixture(params=["bubblewrap", pytest.param("docker", marks=pytest.mark.docker)])
def backend(request: pytest.FixtureRequest) -> Backend:
    return Backend(request.param)


@pytest.fixture(
    params=[
        "bubblewrap",
        "bubblewrap-watched",
        pytest.param("docker", marks=pytest.mark.docker),
    ]
)
def limited_backend(request: pytest.FixtureRequest) -> Backend:
    return Backend(request.param)


@pytest.fixture
def spec() -> SandboxSpec:
    return SPEC
