"""What a rollout leaves in the timeline: work, and lives in which it waited for others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from environments.protocols import ExecResult, InfrastructureError, Submission, Verdict
from harness.accounting import ALIVE
from harness.agents import ScriptedAgent
from harness.clock import WallClock
from harness.config import RolloutConfig, ToolWaitConfig
from harness.protocols import Interval, Task, Trajectory
from harness.rollout import Rollouts
from harness.timeline import Timeline, blocked

TASK = Task("task", "train", "easy", {})
STEP_S = 1.0  # every piece of work takes as long, in the loop's own time


class Loop(asyncio.SelectorEventLoop):
    """Time goes on when nothing is left to do, at once to the next moment that somebody waits
    for."""

    at_s = 0.0

    def time(self) -> float:
        return self.at_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # pyright: ignore[reportAttributeAccessIssue]
            self.at_s = max(self.at_s, self._scheduled[0].when())  # pyright: ignore[reportAttributeAccessIssue]
        super()._run_once()  # pyright: ignore[reportAttributeAccessIssue]


class LoopClock(WallClock):
    def now(self) -> float:
        return asyncio.get_running_loop().time()


class Slow:
    """Sandbox, provider and environment at once: each of their acts takes STEP_S."""

    sandbox_id = name = dataset = kind = why = "slow"
    command_timeout_s = 1.0

    def __init__(self, fails: str = "") -> None:
        self.fails = fails

    async def act(self, name: str) -> None:
        await asyncio.sleep(STEP_S)
        if name == self.fails:
            raise InfrastructureError("exec_transport", f"{name} fails")

    async def start(self, spec: Any) -> Slow:
        await self.act("start")
        return self

    async def exec(self, command: str, **unused: Any) -> ExecResult:
        await self.act("exec")
        return ExecResult("", 0, STEP_S)

    async def stop(self) -> None:
        await self.act("stop")

    def sandbox_spec(self, task: Task) -> Any: ...
    async def prepare(self, task: Task, sandbox: Any) -> None: ...

    def first_message(self, task: Task) -> str:
        return "issue"

    def action(self, text: str) -> str | None:
        return None if text == "submit" else text

    def observation(self, result: ExecResult) -> str:
        return result.output

    async def collect(self, task: Task, sandbox: Any) -> Submission:
        await self.act("collect")
        return Submission("patch", sandbox)  # the verifier works in it

    async def verify(self, task: Task, submission: Any, provider: Any) -> Verdict:
        await self.act("verify")
        return Verdict(1.0, {})


class Thinking(ScriptedAgent):
    """An engine that takes STEP_S for an action."""

    async def act(self, *arguments: Any) -> str | None:
        await asyncio.sleep(STEP_S)
        return await super().act(*arguments)


def lived(
    world: Slow,
    lives: int = 1,
    cancel_after_s: float | None = None,
    limits: RolloutConfig | None = None,
    commands: Sequence[str] = ("true",),
    ended: list[Trajectory | None] | None = None,
) -> list[Interval]:
    async def body() -> list[Interval]:
        clock, everything = LoopClock(), world
        agent: Callable[[Task], Any] = lambda task: Thinking(list(commands))  # noqa: E731
        rollouts = Rollouts(
            everything,  # pyright: ignore[reportArgumentType]
            agent,
            everything,  # pyright: ignore[reportArgumentType]
            clock,
            limits or RolloutConfig(retries=0),
            0.0,
            verification=asyncio.Semaphore(1),
        )
        tasks = [
            clock.spawn(rollouts.run(TASK, 0, i, 1, lambda event: None), f"life-{i}")
            for i in range(lives)
        ]
        if cancel_after_s is None:
            for task in tasks:
                trajectory = await task
                if ended is not None:
                    ended.append(trajectory)
        else:
            await asyncio.sleep(cancel_after_s)
        await clock.cancel_all()
        return rollouts.take_intervals()

    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(body())


def steps(intervals: list[Interval], name: str) -> list[float]:
    return [(i.end_s - i.start_s) / STEP_S for i in intervals if i.name == name]


def test_work_and_waiting_of_one_life():
    """Start, think, exec, think (submit), collect, verify, stop: seven steps, two of them the
    engine's."""
    intervals = lived(Slow())
    for name in ("start", "exec", "collect", "verify", "stop"):
        assert steps(intervals, name) == [1], name
    (life,) = [i for i in intervals if i.name == ALIVE]
    assert life.resource == blocked("sandbox/00")
    timeline = Timeline(0.0)
    timeline.extend(intervals)
    shares = timeline.shares(["sandbox/00"], [(life.start_s, life.end_s)])
    assert shares == pytest.approx({"busy": 5 / 7, "blocked": 2 / 7, "idle": 0.0})


def test_waiting_for_a_verifier_is_not_its_work():
    """Two at once, one may be judged: the other waits, and its own verification is one step."""
    intervals = lived(Slow(), lives=2)
    assert steps(intervals, "verify") == [1, 1]
    assert sorted(steps(intervals, ALIVE)) == [7, 8]


@pytest.mark.parametrize("fails", ["start", "exec", "stop"])
def test_a_life_that_failed_was_a_life_and_its_slot_is_free_again(fails):
    world = Slow(fails)
    intervals = lived(world)
    assert [i.resource for i in intervals if i.name == ALIVE] == [blocked("sandbox/00")]
    assert steps(intervals, fails) == []


def test_a_life_that_the_budget_ended_counts_until_then():
    intervals = lived(Slow(), cancel_after_s=2.5 * STEP_S)
    assert steps(intervals, ALIVE) == [3.5]  # its sandbox is stopped


def test_a_wait_before_a_command_is_the_calls_time_and_no_work_of_the_sandbox():
    """Drawn from the trajectory's seed and the turn: the same in every schedule, no two alike."""

    def waits(sigma: float) -> list[float]:
        ended: list[Any] = []
        limits = RolloutConfig(retries=0, tool_wait=ToolWaitConfig(3.0, sigma))
        intervals = lived(Slow(), limits=limits, commands=["a", "b"], ended=ended)
        assert steps(intervals, "exec") == pytest.approx([1, 1])
        calls = ended[0].turns[:2]
        assert [turn.exec_s - turn.waited_s for turn in calls] == pytest.approx([STEP_S, STEP_S])
        (life,) = [i for i in intervals if i.name == ALIVE]
        assert life.end_s - life.start_s == pytest.approx(9 + sum(turn.waited_s for turn in calls))
        return [turn.waited_s for turn in calls]

    assert waits(0.0) == pytest.approx([3.0, 3.0])
    drawn = waits(1.0)
    assert drawn == waits(1.0)
    assert len(set(drawn)) == 2
