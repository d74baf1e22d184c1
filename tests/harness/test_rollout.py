"""The agent loop on real tasks in real sandboxes, with an engine of failures around them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from environments.protocols import InfrastructureError, SandboxSpec
from environments.sandbox.select import open_provider
from environments.swebench.config import SweBenchConfig
from environments.swebench.environment import SweBench
from harness.agents import ScriptedAgent, scripted
from harness.batch import start
from harness.clock import WallClock
from harness.config import RolloutConfig
from harness.protocols import (
    Event,
    GroupClosed,
    RewardArrived,
    Task,
    Trajectory,
    TrajectoryFinished,
    TrajectoryLost,
    TurnFinished,
    TurnGenerated,
)
from harness.rollout import Rollouts, Slots, derive_seed


class Failing:
    """A real provider whose n-th starts fail, as an overloaded engine's would."""

    def __init__(self, provider: Any, failing_starts: set[int]) -> None:
        self._provider = provider
        self._failing = failing_starts
        self.kind, self.why, self.counters = provider.kind, provider.why, provider.counters
        self.starts = 0

    async def start(self, spec: SandboxSpec) -> Any:
        self.starts += 1
        if self.starts in self._failing:
            raise InfrastructureError("start", f"start number {self.starts} fails")
        return await self._provider.start(spec)

    async def close(self) -> None:
        await self._provider.close()


@pytest.fixture(scope="module")
def environment() -> SweBench:
    environment = SweBench(SweBenchConfig())
    environment.warm_up()
    return environment


def play(
    environment: SweBench,
    body: Callable[[Rollouts, Failing], Coroutine[Any, Any, Any]],
    failing_starts: set[int] | None = None,
    agent: Callable[[Task], ScriptedAgent] | None = None,
    kept: Sequence[Trajectory] = (),
    **limits: Any,
) -> Any:
    """Run `body` with rollouts of scripted agents (default oracle); asserts that nothing leaks."""

    async def run() -> Any:
        clock = WallClock()
        provider = Failing(
            await open_provider("bubblewrap", image="", run_id="test", max_parallel=8),
            failing_starts or set(),
        )
        make = agent or (lambda task: scripted("oracle", environment, task))
        rollouts = Rollouts(
            environment, make, provider, clock, RolloutConfig(**limits), clock.origin_s, kept=kept
        )
        try:
            return await body(rollouts, provider)
        finally:
            await clock.cancel_all()
            await provider.close()
            assert provider.counters.leaked == 0
            assert provider.counters.created == provider.counters.removed

    return asyncio.run(run())


def one(events: list[Event], task: Task) -> Any:
    async def body(rollouts: Rollouts, provider: Failing) -> Any:
        trajectory = await rollouts.run(task, 3, 1, seed=9, emit=events.append)
        return trajectory, provider.starts, dict(rollouts.infrastructure_errors)

    return body


def test_a_trajectory_tells_its_story_in_order(environment):
    events: list[Event] = []
    task = environment.tasks("train")[0]
    trajectory, starts, errors = play(environment, one(events, task))
    assert [type(e) for e in events] == [
        TurnGenerated, TurnFinished, TurnGenerated, TurnFinished, TrajectoryFinished, RewardArrived,
    ]  # fmt: skip
    assert (trajectory.reward, trajectory.end, starts, errors) == (1.0, "submit", 2, {})
    assert 0 < trajectory.sandbox_start_s < trajectory.finished_s <= trajectory.reward_s
    assert trajectory.turns[0].exec_s > 0
    assert trajectory.turns[0].exit_code == 0


def test_a_failed_verifier_is_run_again_on_the_same_patch(environment):
    """The second start is the verifier's sandbox."""
    events: list[Event] = []
    task = environment.tasks("train")[0]
    trajectory, starts, errors = play(environment, one(events, task), failing_starts={2})
    assert trajectory.reward == 1.0
    assert trajectory.attempt == 0
    assert (starts, errors) == (3, {"start": 1})
    assert not any(isinstance(e, TrajectoryLost) for e in events)


def test_a_failed_rollout_starts_again_with_the_same_seed(environment):
    events: list[Event] = []
    task = environment.tasks("train")[0]
    trajectory, _, errors = play(environment, one(events, task), failing_starts={1, 2})
    assert trajectory.reward == 1.0
    assert (trajectory.attempt, trajectory.seed, trajectory.trajectory_id) == (2, 9, "3-1-r2")
    lost = [e for e in events if isinstance(e, TrajectoryLost)]
    assert [(e.kind, e.final, e.trajectory.reward) for e in lost] == [("start", False, None)] * 2
    assert errors == {"start": 2}


def test_past_the_retries_a_trajectory_is_lost_and_never_a_zero(environment, capsys):
    events: list[Event] = []
    task = environment.tasks("train")[0]
    trajectory, _, errors = play(environment, one(events, task), failing_starts=set(range(1, 99)))
    assert trajectory is None
    assert not any(isinstance(e, RewardArrived) for e in events)
    assert events[-1].final
    assert events[-1].trajectory.reward is None
    assert errors == {"start": 3}
    said = capsys.readouterr().err.splitlines()
    assert said == [f"trajectory lost: task {task.task_id}: start: start number 1 fails"]


def test_a_run_that_ended_of_its_losses_goes_on(environment):
    """An update of one group, which was lost for good: its losses are told, then it is tried."""
    task = environment.tasks("train")[0]
    events: list[Event] = []
    play(environment, one(events, task), failing_starts=set(range(1, 99)))
    lost = [e.trajectory for e in events if isinstance(e, TrajectoryLost)]
    again: list[Event] = []
    trajectory, _, errors = play(environment, one(again, task), kept=lost, groups_per_batch=1)
    assert (trajectory.reward, trajectory.seed, trajectory.trajectory_id) == (1.0, 9, "3-1-r3")
    told = [e for e in again if isinstance(e, TrajectoryLost)]
    assert [e.trajectory for e in told] == lost and not any(e.final for e in told)
    assert errors == {"start": 3}


def test_a_group_that_lost_a_trajectory_is_dropped_whole(environment):
    tasks = environment.tasks("train")[:2]

    async def body(rollouts: Rollouts, provider: Failing) -> Any:
        batch = start(rollouts.begin, 0, 0, tasks, 0, WallClock())
        events = []
        while (event := await batch.next()) is not None:
            events.append(event)
        assert batch.ready() == []
        return batch.groups, events

    # With no retry the first start's failure loses one trajectory of one group for good.
    groups, events = play(environment, body, failing_starts={1}, group_size=2, retries=0)
    assert sorted(g.dropped for g in groups) == [False, True]
    assert sorted(len(g.trajectories) for g in groups) == [0, 2]
    assert sum(isinstance(e, GroupClosed) for e in events) == 2
    (kept,) = [g for g in groups if not g.dropped]
    assert [t.index for t in kept.trajectories] == [0, 1]


@pytest.mark.parametrize("turns", [True, False])
def test_a_schedule_that_hears_no_turns_is_handed_the_rest(environment, turns):
    tasks, recorded = environment.tasks("train")[:1], []

    async def body(rollouts: Rollouts, provider: Failing) -> list[Event]:
        batch = start(rollouts.begin, 0, 0, tasks, 0, WallClock(), recorded.append, turns)
        events = []
        while (event := await batch.next()) is not None:
            events.append(event)
        return events

    handed = play(environment, body, group_size=2)
    of_turns = [e for e in recorded if isinstance(e, TurnGenerated | TurnFinished)]
    assert of_turns
    assert list(map(id, handed)) == [id(e) for e in recorded if turns or e not in of_turns]


def test_limits_end_a_trajectory_with_reward_0_and_no_verifier(environment):
    events: list[Event] = []
    task = environment.tasks("train")[0]
    agent = lambda task: ScriptedAgent(["ls"] * 99)  # noqa: E731
    trajectory, starts, _ = play(environment, one(events, task), agent=agent, max_turns=3)
    assert (trajectory.end, len(trajectory.turns), trajectory.reward) == ("turn_limit", 3, 0.0)
    assert trajectory.report == {"submitted": False}
    assert starts == 1


@pytest.mark.parametrize(("of_all", "of_the_task"), [(0.5, 300.0), (300.0, 0.5)])
def test_a_time_limit_ends_a_trajectory(environment, of_all, of_the_task):
    events: list[Event] = []
    task = replace(environment.tasks("train")[0], time_limit_s=of_the_task)
    agent = lambda task: ScriptedAgent(["sleep 0.3"] * 99)  # noqa: E731
    trajectory, _, _ = play(environment, one(events, task), agent=agent, time_limit_s=of_all)
    assert trajectory.end == "time_limit"
    assert trajectory.reward == 0.0


def test_a_defect_in_a_rollout_reaches_the_schedule(environment):
    """A bug is no infrastructure failure: the schedule must not wait for ever."""

    def broken(task: Task) -> ScriptedAgent:
        raise KeyError("a defect")

    async def body(rollouts: Rollouts, provider: Failing) -> None:
        tasks = environment.tasks("train")[:1]
        batch = start(rollouts.begin, 0, 0, tasks, 0, WallClock())
        with pytest.raises(KeyError, match="a defect"):
            while await batch.next() is not None:
                pass
        with pytest.raises(KeyError, match="a defect"):
            batch.ready()

    play(environment, body, agent=broken, group_size=2)


def test_seeds_differ_and_repeat():
    seeds = {derive_seed(s, g, i) for s in range(3) for g in range(4) for i in range(8)}
    assert len(seeds) == 3 * 4 * 8
    # By hand: printf "0/1/2" | b2sum -l 64, halved.
    assert derive_seed(0, 1, 2) == 603432347784401458
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_slots_are_the_lowest_free():
    slots = Slots()
    assert [slots.take() for _ in range(3)] == [0, 1, 2]
    slots.give(1)
    slots.give(0)
    assert [slots.take() for _ in range(3)] == [0, 1, 3]


def test_a_failure_while_the_sandbox_ends_loses_the_trajectory_and_its_reward(environment):
    """A limit's reward of 0 must not survive on the line of a lost attempt."""
    events: list[Event] = []
    task = environment.tasks("train")[0]
    stops = 0

    async def body(rollouts: Rollouts, provider: Failing) -> Any:
        start = provider.start

        async def start_unstoppable(spec: SandboxSpec) -> Any:
            nonlocal stops
            sandbox = await start(spec)
            stop = sandbox.stop

            async def failing_stop() -> None:
                nonlocal stops
                stops += 1
                await stop()
                if stops == 1:
                    raise InfrastructureError("exec_transport", "the engine did not answer")

            sandbox.stop = failing_stop
            return sandbox

        provider.start = start_unstoppable
        trajectory = await rollouts.run(task, 0, 0, seed=1, emit=events.append)
        return trajectory, dict(rollouts.infrastructure_errors)

    agent = lambda task: ScriptedAgent(["ls"] * 9)  # noqa: E731
    trajectory, errors = play(environment, body, agent=agent, max_turns=1)
    (lost,) = [e.trajectory for e in events if isinstance(e, TrajectoryLost)]
    assert (lost.reward, lost.infrastructure_error) == (None, "exec_transport")
    assert (trajectory.reward, trajectory.attempt) == (0.0, 1)
    assert errors == {"exec_transport": 1}


def test_a_verifier_that_always_fails_is_counted_once_per_failure(environment):
    """One rollout and two more tries of it, each judged three times: nine failures."""
    events: list[Event] = []
    task = environment.tasks("train")[0]
    verifiers = {n for n in range(1, 13) if n % 4 != 1}  # starts 1, 5 and 9 are the agents' own
    trajectory, starts, errors = play(environment, one(events, task), failing_starts=verifiers)
    assert trajectory is None
    assert (starts, errors) == (12, {"start": 9})
