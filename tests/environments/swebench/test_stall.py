"""A host that stalls while the tests run is not the agent's failure."""

from __future__ import annotations

from typing import Any

from environments.protocols import Sandbox, SandboxProvider, SandboxSpec, Submission, Verdict
from environments.swebench.config import SweBenchConfig
from environments.swebench.environment import SweBench


class StallsOnce:
    """A provider in whose first sandbox the test runner gets no CPU."""

    def __init__(self, provider: SandboxProvider) -> None:
        self._provider = provider
        self.started = 0

    async def start(self, spec: SandboxSpec) -> Sandbox:
        sandbox = await self._provider.start(spec)
        self.started += 1
        if self.started == 1:
            put = sandbox.put

            async def put_stalled(files: Any, *, base: str | None = None) -> None:
                slow = b"#!/bin/sh\nsleep 30\n"
                stalled = {path: slow for path in files if path.endswith("/runtests")}
                await put({**files, **stalled}, base=base)

            vars(sandbox)["put"] = put_stalled
        return sandbox


def test_a_stall_of_the_host_costs_no_reward(bench) -> None:
    task = bench.task()
    hasty = SweBench(SweBenchConfig(verify_timeout_s=2.0))
    gold = Submission(bench.environment.instance(task).patch)

    async def scenario(provider: SandboxProvider) -> tuple[Verdict, int]:
        stalling: Any = StallsOnce(provider)
        return await hasty.verify(task, gold, stalling), stalling.started

    verdict, started = bench.with_provider(scenario)
    assert (verdict.reward, started) == (1.0, 2)
    assert verdict.report["repeated_after"].startswith("2 s with 0.")
