"""Tasks and sandboxes on paper: what they take, how many there are, how they fail."""

from __future__ import annotations

from typing import Any

import pytest

from environments.protocols import InfrastructureError, UsageError
from environments.simulated.config import SimulatedConfig
from environments.simulated.environment import Simulated
from environments.simulated.sandbox import SimulatedProvider
from environments.simulated.workload import Plan, PlannedTurn
from harness.virtual import VirtualClock


class Planned:
    """Two turns of 2 and 3 seconds."""

    def plan(self, task_seed: int, group: int, index: int, attempt: int) -> Plan:
        turns = [PlannedTurn(10, 20, 2.0), PlannedTurn(30, 0, 3.0)]
        return Plan(100, turns, 5.0, 7.0, 1.0, "easy", "submit")

    def difficulty(self, task_seed: int) -> str:
        return "easy"


def world(most: int = 10, **settings: Any) -> tuple[VirtualClock, Simulated, SimulatedProvider]:
    config = SimulatedConfig(tasks=3, **settings)
    clock = VirtualClock()
    return clock, Simulated(config, Planned(), 0, {}), SimulatedProvider(clock, "test", most)


def test_a_life_takes_its_plan_s_time() -> None:
    clock, environment, provider = world()

    async def main() -> list[float]:
        task = environment.meet(environment.tasks("train")[0], 0, 0, 0)
        sandbox = await provider.start(environment.sandbox_spec(task))
        times = [clock.now()]
        life = task.payload["life"]
        assert [life.advance(), life.last] == [100, False]
        await sandbox.exec("command", timeout_s=100)
        times.append(clock.now())
        assert [life.advance(), life.last] == [20, True]
        late = await sandbox.exec("command", timeout_s=1)
        assert (late.timed_out, late.exit_code) == (True, None)
        times.append(clock.now())
        assert life.advance() is None
        await sandbox.stop()
        await sandbox.stop()
        submission = await environment.collect(task, sandbox)
        assert (await environment.verify(task, submission, provider)).reward == 1.0
        return [*times, clock.now()]

    assert clock.run(main()) == [5.0, 7.0, 8.0, 15.0]
    assert (provider.counters.created, provider.counters.removed) == (2, 2)


def test_no_more_than_max_parallel_are_alive_verifiers_included() -> None:
    clock, environment, provider = world(most=1)

    async def main() -> None:
        task = environment.meet(environment.tasks("train")[0], 0, 0, 0)

        async def life() -> None:
            sandbox = await provider.start(environment.sandbox_spec(task))
            await sandbox.stop()
            await provider.occupied(7.0)

        for one in [clock.spawn(life(), str(n)) for n in range(3)]:
            await one

    clock.run(main())
    assert clock.now() == 3 * (5 + 7)


def test_a_host_begins_one_sandbox_after_the_other() -> None:
    """Their starts overlap but for that: 2 seconds apart, each takes 5."""
    clock, environment, _ = world()
    provider = SimulatedProvider(clock, "test", 10, start_gap_s=2.0)
    ready_s: list[float] = []

    async def main() -> None:
        task = environment.meet(environment.tasks("train")[0], 0, 0, 0)

        async def life() -> None:
            sandbox = await provider.start(environment.sandbox_spec(task))
            ready_s.append(clock.now())
            await sandbox.stop()

        for one in [clock.spawn(life(), str(n)) for n in range(3)]:
            await one

    clock.run(main())
    assert ready_s == [7.0, 9.0, 11.0]


@pytest.mark.parametrize("kind", ["image", "start", "disk"])
def test_a_start_that_fails_leaves_nothing(kind: str) -> None:
    clock, environment, provider = world(most=1, failures={kind: 1.0})

    async def main() -> None:
        task = environment.meet(environment.tasks("train")[0], 0, 0, 0)
        for _ in range(2):
            with pytest.raises(InfrastructureError, match=kind):
                await provider.start(environment.sandbox_spec(task))

    clock.run(main())
    assert clock.now() == 10.0
    assert (provider.counters.created, provider.counters.removed) == (2, 2)


def test_failures_have_their_probability_and_belong_to_their_place() -> None:
    _, environment, _ = world(failures={"exec_transport": 0.25})

    def fails(index: int, attempt: int) -> bool:
        life = environment.meet(environment.tasks("train")[0], 0, index, attempt).payload["life"]
        try:
            life.may_fail(("exec_transport", "out_of_memory"), 0)
        except InfrastructureError as error:
            assert error.kind == "exec_transport"
            return True
        return False

    first = [fails(n, 0) for n in range(2000)]
    assert first == [fails(n, 0) for n in range(2000)]
    assert first != [fails(n, 1) for n in range(2000)]
    assert 0.2 < sum(first) / 2000 < 0.3


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tasks": 0}, "env.tasks=0"),
        ({"command_timeout_s": 0}, "env.command_timeout_s=0"),
        ({"failures": {"fire": 0.1}}, "env.failures.fire: no such kind"),
        ({"failures": {"start": -0.1}}, "env.failures.start=-0.1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        SimulatedConfig(**settings).check()
