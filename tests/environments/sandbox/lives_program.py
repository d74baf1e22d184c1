"""A harness to be killed: task lives on the engine named, one line when each begins and ends.

python lives_program.py ADDRESS IMAGE FIRST LAST PARALLEL
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from environments.protocols import SandboxSpec, Task
from environments.sandbox.options import ProviderOptions
from environments.sandbox.select import open_provider
from environments.swebench.config import SweBenchConfig
from environments.swebench.environment import SweBench
from harness.agents import scripted
from harness.clock import WallClock
from harness.config import RolloutConfig
from harness.rollout import Rollouts


class WithImage(SweBench):
    """Mini's tasks on another image."""

    def __init__(self, image: str) -> None:
        super().__init__(SweBenchConfig())
        self._image = image

    def sandbox_spec(self, task: Task) -> SandboxSpec:
        return replace(super().sandbox_spec(task), image=self._image)


async def main(address: str, image: str, first: int, last: int, parallel: int) -> None:
    environment = WithImage(image)
    environment.warm_up()
    tasks = environment.tasks("train")
    provider = await open_provider(
        "docker",
        image=image,
        run_id="lives",
        max_parallel=parallel + 4,
        options=ProviderOptions(hosts=(address,), warm=4, start_parallel=4),
    )
    clock = WallClock()
    rollouts = Rollouts(
        environment,
        lambda task: scripted("oracle", environment, task),
        provider,
        clock,
        RolloutConfig(),
        clock.origin_s,
    )
    limit = asyncio.Semaphore(parallel)

    async def life(number: int) -> None:
        async with limit:
            print("begin", number, flush=True)
            task = tasks[number % len(tasks)]
            trajectory = await rollouts.run(task, number, 0, number, lambda event: None)
            print("end", number, trajectory and trajectory.reward, flush=True)

    try:
        await asyncio.gather(*(life(number) for number in range(first, last)))
    finally:
        await provider.close()
    print("closed", provider.counters, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3], *map(int, sys.argv[3:])))
