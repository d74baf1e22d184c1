"""Task folders made on the fly, and short ways to run an agent's commands and the verifier."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from environments.protocols import Sandbox, SandboxProvider, Task, Verdict
from environments.sandbox.images import MINI_IMAGE
from environments.sandbox.select import open_provider
from environments.terminal_bench import folder
from environments.terminal_bench.config import TerminalBenchConfig
from environments.terminal_bench.environment import TerminalBench

TASK_TOML = """\
schema_version = "1.4"

[environment]
memory_mb = 128
storage_mb = 32
network_mode = "no-network"
"""
DOCKERFILE = """\
FROM thundersync/mini:1
RUN mkdir -p /app && chown agent:agent /app
USER agent
WORKDIR /app
"""
# Runs what the agent has made, as tests do, and looks at what it has left.
TEST_SH = """\
#!/bin/bash
if [ -e /app/program ]; then timeout 10 bash /app/program; fi
if [ "$(cat /app/answer 2>/dev/null)" = 42 ]; then reward=1; else reward=0; fi
for _ in {1..200}; do kill -KILL -1 2>/dev/null || break; done
echo "$reward" >/logs/verifier/reward.txt
"""
SOLVED = "echo 42 > answer"


def write_task(
    root: Path,
    name: str = "answer",
    *,
    toml: str = TASK_TOML,
    dockerfile: str | None = DOCKERFILE,
    test: str | None = TEST_SH,
    files: Mapping[str, str] | None = None,
) -> Path:
    """A task folder below `root`: write 42 to /app/answer. `files` are added as they are named."""
    texts = {"task.toml": toml, "instruction.md": "Write 42 to /app/answer.\n"}
    if dockerfile is not None:
        texts["environment/Dockerfile"] = dockerfile
    if test is not None:
        texts["tests/test.sh"] = test
    texts["solution/solve.sh"] = f"{SOLVED}\n"
    for path, text in (texts | dict(files or {})).items():
        target = root / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return root / name


class Bench:
    """TerminalBench in one kind of sandbox, with providers that must leave nothing behind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def with_provider(self, body: Callable[[SandboxProvider], Awaitable[Any]]) -> Any:
        async def scenario() -> Any:
            provider = await open_provider(
                self.kind,  # type: ignore[arg-type]
                image=MINI_IMAGE,
                run_id="tests-terminal",
                max_parallel=4,
            )
            try:
                return await body(provider)
            finally:
                await provider.close()
                assert provider.counters.leaked == 0

        return asyncio.run(scenario())

    @staticmethod
    def environment_of(
        path: Path, config: TerminalBenchConfig | None = None
    ) -> tuple[TerminalBench, Task]:
        """The environment of the folder that `path` lies in, and the task in `path`."""
        config = config or TerminalBenchConfig()
        config.dataset = str(path.parent)
        environment = TerminalBench(config)
        return environment, environment.task(folder.load(path), "eval")

    def in_sandbox(
        self, environment: TerminalBench, task: Task, body: Callable[[Sandbox], Awaitable[Any]]
    ) -> Any:
        """Run `body` in a sandbox prepared for `task`."""

        async def scenario(provider: SandboxProvider) -> Any:
            sandbox = await provider.start(environment.sandbox_spec(task))
            try:
                await environment.prepare(task, sandbox)
                return await body(sandbox)
            finally:
                await sandbox.stop()

        return self.with_provider(scenario)

    def judge(
        self, path: Path, commands: Sequence[str], config: TerminalBenchConfig | None = None
    ) -> Verdict:
        """The verdict after an agent's commands on the task in `path`."""
        environment, task = self.environment_of(path, config)

        async def scenario(provider: SandboxProvider) -> Verdict:
            sandbox = await provider.start(environment.sandbox_spec(task))
            try:
                await environment.prepare(task, sandbox)
                for command in commands:
                    await sandbox.exec(command, timeout_s=20)
                submission = await environment.collect(task, sandbox)
                return await environment.verify(task, submission, provider)
            finally:
                await sandbox.stop()

        return self.with_provider(scenario)


@pytest.fixture(
    scope="session", params=["bubblewrap", pytest.param("docker", marks=pytest.mark.docker)]
)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param)


@pytest.fixture
def docker_bench() -> Bench:
    return Bench("docker")


@pytest.fixture
def bubblewrap_bench() -> Bench:
    return Bench("bubblewrap")


@pytest.fixture
def make_task(tmp_path: Path) -> Callable[..., Path]:
    """write_task into this test's own folder."""

    def make(name: str = "answer", **settings: Any) -> Path:
        return write_task(tmp_path / "tasks", name, **settings)

    return make
