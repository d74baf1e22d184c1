"""One environment for all, and short ways to run a scenario in real sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from environments.protocols import Sandbox, SandboxProvider, Submission, Task, Verdict
from environments.sandbox.select import open_provider
from environments.swebench.environment import SweBench
from environments.swebench.mini.dataset import IMAGE


class Bench:
    """SweBench on mini, with providers that must leave nothing behind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.environment = SweBench()
        self.environment.warm_up()

    def task(self, difficulty: str = "easy", split: str = "eval") -> Task:
        return next(t for t in self.environment.tasks(split) if t.difficulty == difficulty)

    def with_provider(self, body: Callable[[SandboxProvider], Awaitable[Any]]) -> Any:
        async def scenario() -> Any:
            provider = await open_provider(
                self.kind,  # type: ignore[arg-type]
                image=IMAGE,
                run_id="tests-swebench",
                max_parallel=4,
            )
            try:
                return await body(provider)
            finally:
                await provider.close()
                assert provider.counters.leaked == 0

        return asyncio.run(scenario())

    def in_sandbox(self, task: Task, body: Callable[[Sandbox], Awaitable[Any]]) -> Any:
        """Run `body` in a sandbox prepared for `task`."""

        async def scenario(provider: SandboxProvider) -> Any:
            sandbox = await provider.start(self.environment.sandbox_spec(task))
            try:
                await self.environment.prepare(task, sandbox)
                return await body(sandbox)
            finally:
                await sandbox.stop()

        return self.with_provider(scenario)

    async def solve(self, task: Task, sandbox: Sandbox, commands: list[str]) -> Submission:
        """What is collected after `commands`, each of which must succeed."""
        for command in commands:
            result = await sandbox.exec(command, timeout_s=20)
            assert result.exit_code == 0, result.output
        return await self.environment.collect(task, sandbox)

    def verdicts(self, task: Task, patches: Mapping[str, str]) -> dict[str, Verdict]:
        """The verdict on each named patch of one task."""

        async def scenario(provider: SandboxProvider) -> dict[str, Verdict]:
            return {
                name: await self.environment.verify(task, Submission(patch), provider)
                for name, patch in patches.items()
            }

        return self.with_provider(scenario)


@pytest.fixture(
    scope="session", params=["bubblewrap", pytest.param("docker", marks=pytest.mark.docker)]
)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param)
