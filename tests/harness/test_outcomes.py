"""Every kind of failure: whose it is, what it does to the reward, and where it is counted."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from environments.protocols import (
    ExecResult,
    InfrastructureError,
    InfrastructureKind,
    Submission,
    Verdict,
)
from harness.agents import ScriptedAgent
from harness.clock import WallClock
from harness.composition import compose
from harness.config import RolloutConfig
from harness.display import print_closing_table
from harness.outcomes import AGENT_KINDS, Outcomes, failure
from harness.protocols import Event, Task, Trajectory, TrajectoryLost
from harness.records import blank_summary
from harness.rollout import Rollouts
from harness.trajectory_lines import decode, encode

TASK = Task("task", "train", "easy", {})
KINDS = get_args(InfrastructureKind)


class Box:
    """A sandbox whose commands come out, and which fails, as it is told to."""

    sandbox_id = "box"

    def __init__(self, result: ExecResult, fails: str | None, kind: Any) -> None:
        self._result, self._fails, self._kind = result, fails, kind

    def check(self, where: str) -> None:
        if where == self._fails:
            raise InfrastructureError(self._kind, f"{where} fails")

    async def exec(self, command: str, **unused: Any) -> ExecResult:
        self.check("exec")
        return self._result

    async def put(self, files: Any, *, base: str | None = None) -> None: ...
    async def get(self, path: str) -> bytes:
        return b""

    async def stop(self) -> None: ...


class World:
    """Provider and environment at once, with one failure of one kind at one place."""

    name = dataset = kind = why = "world"
    command_timeout_s = 1.0

    def __init__(
        self, fails: str | None = None, kind: Any = "start", times: int = 99,
        result: ExecResult | None = None, verdict: Verdict | None = None,
    ) -> None:  # fmt: skip
        self.left, self.fails, self.failing_kind = times, fails, kind
        self.result = result or ExecResult("", 0, 0.0)
        self.verdict = verdict or Verdict(1.0, {"reason": "resolved"})

    def check(self, where: str) -> None:
        if where == self.fails and self.left:
            self.left -= 1
            raise InfrastructureError(self.failing_kind, f"{where} fails")

    async def start(self, spec: Any) -> Box:
        self.check("start")
        inside = self.fails if self.left and self.fails == "exec" else None
        self.left -= inside is not None
        return Box(self.result, inside, self.failing_kind)

    def sandbox_spec(self, task: Task) -> Any: ...
    async def prepare(self, task: Task, sandbox: Any) -> None:
        self.check("prepare")

    def first_message(self, task: Task) -> str:
        return "issue"

    def action(self, text: str) -> str | None:
        return None if text == "submit" else text

    def observation(self, result: ExecResult) -> str:
        return result.output

    async def collect(self, task: Task, sandbox: Any) -> Submission:
        self.check("collect")
        return Submission("patch")

    async def verify(self, task: Task, submission: Any, provider: Any) -> Verdict:
        self.check("verify")
        return self.verdict


def play(
    world: World, commands: Sequence[str] = ("true",), **limits: Any
) -> tuple[Trajectory | None, list[TrajectoryLost], dict[str, int]]:
    async def run() -> Any:
        clock, events = WallClock(), list[Event]()
        everything: Any = world
        rollouts = Rollouts(
            everything, lambda task: ScriptedAgent(commands), everything, clock,
            RolloutConfig(**limits), clock.origin_s,
        )  # fmt: skip
        trajectory = await rollouts.run(TASK, 0, 0, 1, events.append)
        lost = [event for event in events if isinstance(event, TrajectoryLost)]
        return trajectory, lost, dict(rollouts.infrastructure_errors)

    return asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["start", "prepare", "exec", "collect", "verify"])
def test_infrastructure_is_tried_again_then_lost_and_never_a_reward(place: str, kind: str) -> None:
    trajectory, lost, errors = play(World(place, kind, times=1), retries=1)
    assert trajectory is not None and trajectory.reward == 1.0
    assert failure(trajectory) is None
    assert errors == {kind: 1}

    trajectory, lost, errors = play(World(place, kind), retries=1)
    assert trajectory is None
    assert lost[-1].final and lost[-1].kind == kind
    for event in lost:
        assert event.trajectory.reward is None
        assert failure(event.trajectory) == kind
        assert encode(event.trajectory)["failure"] == kind
    assert set(errors) == {kind}


SLOW = Verdict(0.0, {"reason": "the tests ran past 9 s", "failure": "agent_timeout"})
HUNGRY = Verdict(0.0, {"reason": "out of memory", "failure": "agent_out_of_memory"})
WRONG = Verdict(0.0, {"reason": "tests fail"})
OWN = {
    "its time is up": (World(), {"time_limit_s": 1e-9}, "agent_timeout"),
    "its code is too slow": (World(verdict=SLOW), {}, "agent_timeout"),
    "its code takes too much memory": (World(verdict=HUNGRY), {}, "agent_out_of_memory"),
    "its command took too much memory": (
        World(verdict=WRONG, result=ExecResult("", 137, 0.1, out_of_memory=True)),
        {},
        "agent_out_of_memory",
    ),
    "a slow command of its own": (
        World(verdict=WRONG, result=ExecResult("", None, 9.0, timed_out=True)), {}, None,
    ),
    "it is wrong": (World(verdict=WRONG), {}, None),
    "turns run out": (World(), {"max_turns": 1}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_an_agents_own_failure_is_its_zero_and_no_infrastructure(name: str) -> None:
    world, limits, kind = OWN[name]
    trajectory, lost, errors = play(world, ("one", "two"), **limits)
    assert trajectory is not None
    assert (trajectory.reward, lost, errors) == (0.0, [], {})
    assert failure(trajectory) == kind
    line = encode(trajectory)
    assert line["failure"] == kind
    assert failure(decode(line)) == kind


def test_memory_that_ran_out_on_the_way_to_a_solution_is_no_failure() -> None:
    world = World(result=ExecResult("", 137, 0.1, out_of_memory=True))
    trajectory, _, _ = play(world)
    assert trajectory is not None and trajectory.reward == 1.0
    assert trajectory.turns[0].out_of_memory
    assert failure(trajectory) is None


def test_the_closing_table_counts_all_of_them() -> None:
    outcomes = Outcomes()
    for verdict in (SLOW, SLOW, HUNGRY, WRONG):
        trajectory, _, _ = play(World(verdict=verdict))
        assert trajectory is not None
        outcomes.add(trajectory)
    for kinds in (["test_files"], ["caches", "test_files"]):
        trajectory, _, _ = play(World(verdict=Verdict(0.0, {"integrity": kinds})))
        assert trajectory is not None
        outcomes.add(trajectory)
    assert dict(outcomes.agent_failures) == dict(zip(AGENT_KINDS, (2, 1), strict=True))
    summary = blank_summary(compose(["schedule=stream"]))
    summary["infrastructure_errors"] = dict.fromkeys(KINDS, 3)
    summary["agent_failures"] = dict(outcomes.agent_failures)
    summary["integrity"] = dict(outcomes.integrity)
    stream = io.StringIO()
    print_closing_table(summary, Path("summary.json"), stream)
    shown = " ".join(stream.getvalue().replace("|", " ").split())
    for kind in KINDS:
        assert f"{kind} 3" in shown
    assert "agent_out_of_memory 1, agent_timeout 2" in shown
    assert "caches 1, test_files 2" in shown
    assert max(map(len, stream.getvalue().splitlines())) <= 80
