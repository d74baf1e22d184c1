"""What a sandbox in Docker costs, beside the plain docker command line in the same run.

The times in extra_info are in milliseconds; a ratio is command line / ours.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from environments.protocols import Sandbox, SandboxSpec
from environments.sandbox.images import MINI_IMAGE
from environments.sandbox.options import ProviderOptions
from environments.sandbox.select import open_provider
from environments.swebench.config import SweBenchConfig
from environments.swebench.environment import SweBench

pytestmark = pytest.mark.docker
SPEC = SandboxSpec(MINI_IMAGE, memory_mb=256, pids=64, scratch_mb=64)
_WARM = 4


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def pool(runner: asyncio.Runner) -> Iterator[Any]:
    provider = runner.run(opened("bench", max_parallel=8, warm=_WARM))
    yield provider
    runner.run(provider.close())
    assert provider.counters.leaked == 0


def opened(run_id: str, max_parallel: int, warm: int = 0) -> Any:
    return open_provider(
        "docker",
        image=MINI_IMAGE,
        run_id=run_id,
        max_parallel=max_parallel,
        options=ProviderOptions(warm=warm, start_parallel=4),
    )


def percentiles(seconds: list[float]) -> tuple[float, float]:
    """(p50, p99) in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return round(cuts[49] * 1e3, 2), round(cuts[98] * 1e3, 2)


async def refilled(pool: Any) -> None:
    while pool.idle < _WARM:
        await asyncio.sleep(0.05)


async def ended(used: list[Sandbox]) -> None:
    while used:
        await used.pop().stop()


@pytest.mark.benchmark(group="sandbox: start to first exec")
@pytest.mark.parametrize("made", ["cold", "warm"])
def test_start_to_first_exec(
    benchmark: BenchmarkFixture, runner: asyncio.Runner, pool: Any, made: str
) -> None:
    provider = pool if made == "warm" else pool.provider
    used: list[Sandbox] = []

    async def between() -> None:
        await ended(used)
        if made == "warm":
            pool.expect(SPEC)
            await refilled(pool)

    async def first_exec() -> None:
        used.append(await provider.start(SPEC))
        assert (await used[-1].exec("true", timeout_s=20)).exit_code == 0

    benchmark.pedantic(
        lambda: runner.run(first_exec()), setup=lambda: runner.run(between()), rounds=10
    )
    runner.run(ended(used))
    assert pool.misses == 0
    benchmark.extra_info["p50_ms"] = round(benchmark.stats.stats.median * 1e3, 1)


@pytest.mark.benchmark(group="sandbox: start as a trajectory sees it")
def test_sandbox_start_s(benchmark: BenchmarkFixture, runner: asyncio.Runner, pool: Any) -> None:
    """Start and prepare of the mini data set's tasks, from a pool that rollouts gave time."""
    environment = SweBench(SweBenchConfig())
    tasks = environment.tasks("train")
    used: list[Sandbox] = []
    number = 0

    async def between() -> None:
        await ended(used)
        pool.expect(environment.sandbox_spec(tasks[0]))
        await refilled(pool)

    async def start() -> None:
        nonlocal number
        task = tasks[number % len(tasks)]
        number += 1
        used.append(await pool.start(environment.sandbox_spec(task)))
        await environment.prepare(task, used[-1])

    benchmark.pedantic(lambda: runner.run(start()), setup=lambda: runner.run(between()), rounds=20)
    runner.run(ended(used))
    assert pool.misses == 0
    benchmark.extra_info["p50_ms"] = round(benchmark.stats.stats.median * 1e3, 1)


@pytest.mark.benchmark(group="sandbox: exec true")
@pytest.mark.parametrize("parallel", [1, 8, pytest.param(32, marks=pytest.mark.slow)])
def test_exec_true(benchmark: BenchmarkFixture, runner: asyncio.Runner, parallel: int) -> None:
    docker = shutil.which("docker")
    assert docker is not None
    provider = runner.run(opened("bench-exec", max_parallel=parallel))

    async def many(once: Callable[[Sandbox], Awaitable[Any]], times: int) -> list[float]:
        """`times` in each of the sandboxes, in all of them at once; seconds of each."""
        seconds: list[float] = []

        async def one(sandbox: Sandbox) -> None:
            for _ in range(times):
                began_s = time.perf_counter()
                await once(sandbox)
                seconds.append(time.perf_counter() - began_s)

        await asyncio.gather(*(one(sandbox) for sandbox in sandboxes))
        return seconds

    async def ours(sandbox: Sandbox) -> None:
        assert (await sandbox.exec("true", timeout_s=60)).exit_code == 0

    async def command_line(sandbox: Sandbox) -> None:
        process = await asyncio.create_subprocess_exec(docker, "exec", sandbox.sandbox_id, "true")
        assert await process.wait() == 0

    async def start_all() -> list[Sandbox]:
        return list(await asyncio.gather(*(provider.start(SPEC) for _ in range(parallel))))

    try:
        sandboxes = runner.run(start_all())
        runner.run(many(ours, 3))
        seconds: list[float] = []
        plain: list[float] = []
        ratios: list[float] = []

        def command_line_in_turn() -> None:
            """One round of it after each of ours: other work on the machine meets both."""
            if seconds:
                plain.extend(last := runner.run(many(command_line, max(1, 8 // parallel))))
                ratios.append(statistics.median(last) / statistics.median(seconds[-len(last) :]))

        benchmark.pedantic(
            lambda: seconds.extend(runner.run(many(ours, max(4, 80 // parallel)))),
            setup=command_line_in_turn,
            rounds=8,
        )
        command_line_in_turn()
    finally:
        runner.run(provider.close())
    (p50, p99), (plain_p50, plain_p99) = percentiles(seconds), percentiles(plain)
    benchmark.extra_info.update(
        p50_ms=p50,
        p99_ms=p99,
        command_line_p50_ms=plain_p50,
        command_line_p99_ms=plain_p99,
        p50_ratio=round(plain_p50 / p50, 1),
        p99_ratio=round(plain_p99 / p99, 1),
        ratio_of_rounds=[round(ratio, 1) for ratio in sorted(ratios)],
    )
    assert statistics.median(ratios) >= 20


@pytest.mark.benchmark(group="sandbox: start as a trajectory sees it")
@pytest.mark.parametrize("size", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_a_batch_asks_at_once(
    benchmark: BenchmarkFixture, runner: asyncio.Runner, size: int
) -> None:
    """Start and prepare of a whole batch, whose sandboxes were made while the last one was at work:
    there are slots for both."""
    environment = SweBench(SweBenchConfig())
    tasks = environment.tasks("train")
    pool = runner.run(opened("bench-batch", max_parallel=2 * size, warm=size))
    seconds: list[float] = []
    used: list[Sandbox] = []

    async def between() -> None:
        await asyncio.gather(*(sandbox.stop() for sandbox in used))
        used.clear()
        pool.expect(environment.sandbox_spec(tasks[0]))
        while pool.idle < size:
            await asyncio.sleep(0.05)

    async def one(number: int) -> None:
        began_s = time.perf_counter()
        sandbox = await pool.start(environment.sandbox_spec(tasks[number]))
        used.append(sandbox)
        await environment.prepare(tasks[number], sandbox)
        seconds.append(time.perf_counter() - began_s)

    async def batch() -> None:
        await asyncio.gather(*(one(number) for number in range(size)))

    try:
        benchmark.pedantic(
            lambda: runner.run(batch()), setup=lambda: runner.run(between()), rounds=3
        )
    finally:
        runner.run(pool.close())
    assert pool.misses == 0 and pool.counters.leaked == 0
    p50, p99 = percentiles(seconds)
    mean = round(statistics.fmean(seconds) * 1e3, 1)
    benchmark.extra_info.update(mean_ms=mean, p50_ms=p50, p99_ms=p99)
