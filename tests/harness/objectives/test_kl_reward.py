"""KL in the reward: a finished trajectory's penalty, on real tasks in real sandboxes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from environments.sandbox.select import open_provider
from environments.swebench.config import SweBenchConfig
from environments.swebench.environment import SweBench
from harness.agents import ScriptedAgent, scripted
from harness.clock import WallClock
from harness.config import Config, KlConfig, RolloutConfig
from harness.parts import reward_penalty
from harness.protocols import Event, RewardArrived, Task, Trajectory, TrajectoryFinished
from harness.rollout import Penalty, Rollouts
from harness.trajectory_lines import decode, encode


class Judge:
    """A learner that knows one verb: every trajectory is half a nat away from the reference."""

    async def reference_kl(self, trajectories: list[Trajectory]) -> list[float]:
        return [0.5] * len(trajectories)


@pytest.fixture(scope="module")
def environment() -> SweBench:
    environment = SweBench(SweBenchConfig())
    environment.warm_up()
    return environment


def live(
    environment: SweBench,
    penalty: Penalty | None,
    emit: Callable[[Event], None],
    agent: Callable[[Task], ScriptedAgent] | None = None,
) -> Trajectory:
    """One trajectory on the first training task; the oracle's unless an agent is given."""
    task = environment.tasks("train")[0]

    async def body() -> Any:
        clock = WallClock()
        provider = await open_provider("bubblewrap", image="", run_id="test", max_parallel=2)
        make = agent or (lambda task: scripted("oracle", environment, task))
        limits = RolloutConfig(max_turns=2)
        rollouts = Rollouts(environment, make, provider, clock, limits, clock.origin_s, penalty)
        try:
            return await rollouts.run(task, 0, 0, seed=1, emit=emit)
        finally:
            await clock.cancel_all()
            await provider.close()

    return asyncio.run(body())


def config(coefficient: float, place: str = "reward") -> Config:
    config = Config()
    config.objective.kl = KlConfig(coefficient, "k1", place)
    return config


def test_the_reward_is_the_verdict_less_the_penalty_and_the_verdict_stays_in_sight(environment):
    penalty = reward_penalty(config(0.1), Judge())  # pyright: ignore[reportArgumentType]
    arrived: list[float | None] = []

    def emit(event: Event) -> None:
        if isinstance(event, RewardArrived):
            arrived.append(event.trajectory.reward)

    trajectory = live(environment, penalty, emit)
    assert arrived == [1.0 - 0.1 * 0.5]
    assert trajectory.verdict_reward == 1.0
    assert trajectory.report["kl_penalty"] == 0.05
    assert len(trajectory.report) > 2  # the verifier's own words too
    again = decode(encode(trajectory))
    assert (again.reward, again.verdict_reward) == (0.95, 1.0)


def test_a_trajectory_that_a_limit_ended_is_penalised_as_well(environment):
    penalty = reward_penalty(config(0.1), Judge())  # pyright: ignore[reportArgumentType]
    trajectory = live(environment, penalty, lambda e: None, lambda task: ScriptedAgent(["ls"] * 9))
    assert (trajectory.end, trajectory.reward, trajectory.verdict_reward) == (
        "turn_limit", -0.05, 0.0,
    )  # fmt: skip


def test_no_schedule_sees_a_reward_before_its_penalty(environment):
    """It is computed while the verifier runs; until it is there the reward is unknown."""
    seen: list[float | None] = []

    async def slow(trajectory: Trajectory) -> float:
        while trajectory.verify_s == 0.0:  # for ever, if the verifier waited for the penalty
            await asyncio.sleep(0.01)
        for _ in range(20):
            await asyncio.sleep(0.01)
            seen.append(trajectory.reward)
        return 0.25

    def emit(event: Event) -> None:
        if isinstance(event, TrajectoryFinished):
            assert seen == []

    trajectory = live(environment, slow, emit)
    assert seen == [None] * 20
    assert trajectory.reward == 0.75


def test_a_penalty_that_is_no_number_ends_the_run(environment):
    async def broken(trajectory: Trajectory) -> float:
        return math.nan

    with pytest.raises(ValueError, match="0-0: a penalty of nan"):
        live(environment, broken, lambda e: None)


@pytest.mark.parametrize(("coefficient", "place"), [(0.0, "reward"), (0.1, "loss")])
def test_without_a_kl_in_the_reward_nothing_is_subtracted(coefficient, place):
    learner: Any = Judge()
    assert reward_penalty(config(coefficient, place), learner) is None
