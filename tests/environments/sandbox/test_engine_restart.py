"""The engine stops and starts in the middle of a run: no fake zero, nothing lost, nothing left."""

from __future__ import annotations

import asyncio
import signal

import pytest

from environments.sandbox.images import MINI_IMAGE
from environments.sandbox.options import ProviderOptions
from environments.sandbox.select import open_provider
from environments.swebench.config import SweBenchConfig
from environments.swebench.environment import SweBench
from harness.agents import ScriptedAgent
from harness.clock import WallClock
from harness.config import RolloutConfig
from harness.protocols import TrajectoryFinished, TrajectoryLost
from harness.rollout import Rollouts

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.mark.parametrize("warm", [0, 4])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_the_run_goes_on(own_engine, how, warm):
    environment = SweBench(SweBenchConfig())
    environment.warm_up()
    tasks = environment.tasks("train")
    events = []

    async def scenario():
        provider = await open_provider(
            "docker",
            image=MINI_IMAGE,
            run_id="restart",
            max_parallel=6,
            options=ProviderOptions(hosts=(own_engine.address,), warm=warm),
        )
        clock = WallClock()
        rollouts = Rollouts(
            environment,
            lambda task: ScriptedAgent(["sleep 1", *environment.oracle_commands(task)]),
            provider,
            clock,
            RolloutConfig(),
            clock.origin_s,
        )
        lives = [
            asyncio.create_task(rollouts.run(tasks[n % len(tasks)], n, 0, n, events.append))
            for n in range(18)
        ]
        while sum(isinstance(event, TrajectoryFinished) for event in events) < 4:
            await asyncio.sleep(0.02)
        assert sum(not life.done() for life in lives) >= 6
        await asyncio.to_thread(own_engine.end, how)
        await asyncio.sleep(1.0)
        await asyncio.to_thread(own_engine.start)
        ended = await asyncio.gather(*lives)
        await provider.close()
        print(dict(rollouts.infrastructure_errors), provider.counters)
        return provider, ended

    provider, ended = asyncio.run(scenario())
    assert [t and t.reward for t in ended] == [1.0] * 18
    lost = [event for event in events if isinstance(event, TrajectoryLost)]
    assert lost and all(event.trajectory.reward is None for event in lost)
    assert not any(event.final for event in lost)
    assert provider.counters.created == provider.counters.removed
    assert provider.counters.leaked == 0
    stopped = how == signal.SIGTERM
    counts = own_engine.counts() if stopped else own_engine.counts_after_kill()
    assert counts == dict.fromkeys(counts, 0)
