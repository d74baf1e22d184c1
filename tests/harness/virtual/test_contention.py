"""Shared cores in virtual time: durations by hand, and none of it where nothing is shared."""

from __future__ import annotations

from typing import Any

import pytest

from environments.simulated.life import Life
from environments.simulated.sandbox import SimulatedProvider, SimulatedSpec
from environments.simulated.workload import Plan, PlannedTurn
from harness import composition
from harness.contention import Cores
from harness.costs.select import cost_model
from harness.engines.simulated import SimulatedEngine
from harness.learner.simulated import SimulatedLearner
from harness.protocols import Generation, Trajectory
from harness.virtual import VirtualClock


def two_cores(engine: float, learner: float, sandboxes: float) -> float:
    """A sandbox at work wants a whole core."""
    return max(1.0, (engine + learner + sandboxes) / 2)


class World:
    """A thread for the engine, one for the learner, sandboxes, and two cores for all of them."""

    def __init__(self, costs: Any) -> None:
        self.clock = VirtualClock()
        self.cores = Cores(two_cores, self.clock, 1, 1)
        self.engine = SimulatedEngine(costs, self.clock, replicas=1, slots=8, cores=self.cores)
        self.learner = SimulatedLearner(
            costs, self.clock, ranks=1, chunk_tokens=100, learning_rate=1e-3, form="auto",
            bucket_cap=8, cores=self.cores,
        )  # fmt: skip
        self.provider = SimulatedProvider(self.clock, "test", 100, busy=self.cores.sandbox)
        self.ends: dict[str, float] = {}

    async def decode(self, at_s: float, tokens: int, prompt: int = 1) -> None:
        await self.clock.sleep(at_s)
        await self.engine.generate(Generation("a", range(prompt), tokens, 1.0, 0, ()))
        self.ends["decode"] = self.clock.now()

    async def learn(self, at_s: float, tokens: int) -> None:
        await self.clock.sleep(at_s)
        row = Trajectory("a", "t", "easy", 0, 0, 0, tokens_T=list(range(tokens)))
        await self.learner.accumulate([row], [1.0])
        self.ends["learn"] = self.clock.now()

    async def judge(self, at_s: float, seconds: float) -> None:
        await self.clock.sleep(at_s)
        await self.provider.occupied(seconds)
        self.ends["judge"] = self.clock.now()

    def run(self, *work: Any) -> dict[str, float]:
        async def main() -> None:
            for task in [self.clock.spawn(one, "work") for one in work]:
                await task

        self.clock.run(main())
        return self.ends


def test_one_alone_has_a_core(toy: Any) -> None:
    world = World(toy())
    assert world.run(world.decode(0, 10)) == {"decode": 10}
    assert world.cores.factor == 1


def test_two_threads_have_a_core_each_and_three_share_two(toy: Any) -> None:
    """From 4 to 8 a verifier works too: three on two cores, each at 2/3 of its speed. A verifier's
    own time is the workload's."""
    world = World(toy())
    ends = world.run(world.decode(0, 10), world.learn(0, 20), world.judge(4, 4))
    shared = 4 * (1 - 2 / 3)
    assert ends == {
        "judge": 8, "decode": pytest.approx(10 + shared), "learn": pytest.approx(20 + shared)
    }  # fmt: skip


def test_a_prompt_is_read_at_the_speed_of_every_moment_too(toy: Any) -> None:
    """9 s of reading and a token, alone. Until 3 two verifiers work: 2 s of it are done by then."""
    world = World(toy(read=1.0))
    ends = world.run(world.judge(0, 3), world.judge(0, 3), world.decode(0, 1, prompt=9))
    assert ends == {"judge": 3, "decode": pytest.approx(11)}


def test_what_takes_longer_is_said_to(toy: Any) -> None:
    world = World(toy())
    world.run(world.learn(0, 6), world.judge(0, 100), world.decode(0, 100))
    (interval,) = world.clock.run(world.learner.drain_intervals())
    assert (interval.name, interval.start_s, interval.end_s) == ("accumulate", 0, pytest.approx(9))


def test_a_step_of_the_optimizer_was_measured_as_it_is(toy: Any) -> None:
    world = World(toy(optimizer=5.0))

    async def step() -> None:
        await world.learner.step(1.0)
        world.ends["step"] = world.clock.now()

    assert world.run(step(), world.judge(0, 100), world.decode(0, 100))["step"] == 5


def test_a_pass_that_is_cancelled_leaves_the_cores(toy: Any) -> None:
    world = World(toy())

    async def main() -> None:
        task = world.clock.spawn(world.learn(0, 50), "learn")
        await world.clock.sleep(3)
        task.cancel()
        await world.clock.sleep(1)
        await world.learn(0, 10)

    world.clock.run(main())
    assert world.ends == {"learn": 14}
    assert world.cores.factor == 1


def test_starts_and_tool_calls_are_work_and_waiting_for_the_engine_is_none(toy: Any) -> None:
    """Two sandboxes start for 4 s and run a command from 10 to 14: with the learner's thread that
    is three on two cores."""
    world = World(toy())

    async def live() -> None:
        plan = Plan(1, [PlannedTurn(1, 1, 4.0)], 4.0, 0.0, 0.0, "easy", "turn_limit")
        life = Life(plan, (0, 0, 0, 0), {})
        sandbox = await world.provider.start(SimulatedSpec(image="none", life=life))
        life.advance()
        await world.clock.sleep(6)
        await sandbox.exec("a", timeout_s=100)

    ends = world.run(live(), live(), world.learn(0, 20))
    assert ends["learn"] == pytest.approx(20 + 2 * 4 * (1 - 2 / 3))


@pytest.mark.parametrize(("hardware", "shares"), [("8xb200", False), ("cpu2", True)])
def test_only_the_hardware_of_shared_cores_has_any(hardware: str, shares: bool) -> None:
    config = composition.compose(
        ["env=simulated", f"hardware={hardware}", "workload=math", "tracking=none"]
    )
    assert cost_model(config).shares_cores is shares
