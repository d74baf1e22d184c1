"""A turn whose teacher fails waits, is asked for again, and then is lost by rule: in real rollouts
of a made-up environment, with teachers that fail in every way there is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.clock import WallClock
from harness.config import RolloutConfig
from harness.protocols import (
    Event,
    ExecResult,
    InfrastructureError,
    Interval,
    RewardArrived,
    Submission,
    Task,
    TeacherScores,
    Trajectory,
    TrajectoryFinished,
    TrajectoryLost,
    TurnFinished,
    TurnGenerated,
    Verdict,
)
from harness.rollout import Rollouts
from harness.teachers.protocol import ScoreRequest, TeacherError
from harness.teachers.scoring import Scoring

TURNS, NEW = 3, 4
TASK = Task("t", "train", "easy", {})


class Machine:
    """Sandbox, provider and environment in one: commands take a moment, verdicts are 1."""

    command_timeout_s = 1.0

    def __init__(self, verify_s: float = 0.0, failing_verdicts: int = 0) -> None:
        self.verify_s, self.failing = verify_s, failing_verdicts

    async def start(self, spec: Any) -> Any:
        return self

    async def prepare(self, task: Task, sandbox: Any) -> None: ...
    async def stop(self) -> None: ...

    async def exec(self, command: str, *, timeout_s: float) -> ExecResult:
        await asyncio.sleep(0.01)
        return ExecResult("", 0, 0.01)

    async def collect(self, task: Task, sandbox: Any) -> Submission:
        return Submission("")

    async def verify(self, task: Task, submission: Submission, provider: Any) -> Verdict:
        if self.failing:
            self.failing -= 1
            raise InfrastructureError("start", "no sandbox for the verifier")
        await asyncio.sleep(self.verify_s)
        return Verdict(1.0, {})

    def first_message(self, task: Task) -> str:
        return ""

    def sandbox_spec(self, task: Task) -> Any:
        return None

    def observation(self, result: ExecResult) -> str:
        return result.output

    def action(self, text: str) -> str | None:
        return None if text == "submit" else text


class Actor:
    """Three turns of four tokens each, two tokens heard before each."""

    async def act(self, trajectory: Trajectory, message: str) -> str:
        turn = len(trajectory.turns)
        trajectory.tokens_T += [100, 101, *range(NEW * turn, NEW * (turn + 1))]
        trajectory.action_mask_T += [0, 0, *[1] * NEW]
        trajectory.behaviour_logprobs_T += [0.0, 0.0, *[-1.0] * NEW]
        return "submit" if turn == TURNS - 1 else "ls"

    async def close(self, trajectory: Trajectory) -> None: ...


def right(request: ScoreRequest) -> TeacherScores:
    """The n-th token has score -n/10, whatever else is asked."""
    own = [-0.1 * t for t in request.tokens_T[request.start :]]
    top = [list(range(request.top_k))] * len(own) if request.top_k else []
    even = [[-math.log(request.top_k + 1)] * request.top_k] * len(own) if request.top_k else []
    return TeacherScores(own, top, even)


@dataclass
class Scripted:
    """Fails as `faults` say, request by request, and then is right."""

    faults: list[Callable[[ScoreRequest], Any]] = field(default_factory=list)
    asked: list[ScoreRequest] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    async def start(self) -> None: ...

    async def score(self, request: ScoreRequest) -> TeacherScores:
        self.asked.append(request)
        answer = (self.faults.pop(0) if self.faults else right)(request)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def release(self, session: str) -> None:
        self.released.append(session)

    async def drain_intervals(self) -> list[Interval]:
        return []

    async def close(self) -> None: ...


def down(request: ScoreRequest) -> TeacherScores:
    raise TeacherError("connection refused")


def for_ever(request: ScoreRequest) -> Any:
    return asyncio.sleep(60)


def too_few(request: ScoreRequest) -> TeacherScores:
    return TeacherScores(right(request).logprobs_N[:-1])


def not_numbers(request: ScoreRequest) -> TeacherScores:
    return TeacherScores([*right(request).logprobs_N[:-1], math.nan])


def infinite(request: ScoreRequest) -> TeacherScores:
    return TeacherScores([*right(request).logprobs_N[:-1], -math.inf])


def positive(request: ScoreRequest) -> TeacherScores:
    return TeacherScores([*right(request).logprobs_N[:-1], 0.5])


def no_top(request: ScoreRequest) -> TeacherScores:
    return TeacherScores(right(request).logprobs_N)


def twice(request: ScoreRequest) -> TeacherScores:
    scores = right(request)
    return TeacherScores(scores.logprobs_N, [[0, 0]] * NEW, scores.top_logprobs_NK)


def too_likely(request: ScoreRequest) -> TeacherScores:
    scores = right(request)
    return TeacherScores(scores.logprobs_N, scores.top_tokens_NK, [[-0.1, -0.1]] * NEW)


FAULTS = [down, for_ever, too_few, not_numbers, infinite, positive]
TOP_FAULTS = [no_top, twice, too_likely]


def live(
    teacher: Scripted, machine: Machine | None = None, top_k: int = 0, wait_s: float = 0.0
) -> tuple[Trajectory | None, list[Event], dict[str, int], Scoring]:
    """One trajectory, with two retries of everything."""
    events: list[Event] = []

    async def body() -> Any:
        clock = WallClock()
        scoring = Scoring(
            teacher, clock, temperature=0.7, top_k=top_k, retries=2, timeout_s=0.05, wait_s=wait_s
        )
        world: Any = machine or Machine()
        rollouts = Rollouts(
            world, lambda task: Actor(), world, clock, RolloutConfig(), clock.origin_s,
            scoring=scoring,
        )  # fmt: skip
        trajectory = await rollouts.run(TASK, 0, 0, seed=1, emit=events.append)
        await clock.cancel_all()
        return trajectory, events, dict(rollouts.infrastructure_errors + scoring.errors), scoring

    return asyncio.run(body())


def test_turns_are_scored_one_by_one_and_the_trajectory_whole():
    teacher = Scripted()
    trajectory, events, errors, scoring = live(teacher)
    assert trajectory is not None
    assert trajectory.teacher is not None
    assert trajectory.teacher.logprobs_N == pytest.approx([-0.1 * n for n in range(NEW * TURNS)])
    assert [(r.start, r.end) for r in teacher.asked] == [(2, 6), (8, 12), (14, 18)]
    assert {(r.temperature, r.top_k) for r in teacher.asked} == {(0.7, 0)}
    kinds = [TurnGenerated, TurnFinished] * 3 + [TrajectoryFinished, RewardArrived]
    assert [type(e) for e in events] == kinds
    assert (errors, teacher.released, scoring._lives) == ({}, ["0-0"], {})


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("turn", [0, 2])
def test_a_turn_that_was_not_scored_is_asked_for_again(turn: int, fault: Any, capsys):
    teacher = Scripted([right] * turn + [fault, fault])
    trajectory, events, errors, _ = live(teacher)
    assert trajectory is not None
    assert trajectory.attempt == 0
    assert trajectory.teacher is not None
    assert trajectory.teacher.logprobs_N == pytest.approx([-0.1 * n for n in range(NEW * TURNS)])
    assert errors == {"teacher": 2}
    assert not any(isinstance(e, TrajectoryLost) for e in events)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("teacher: ")


@pytest.mark.parametrize("fault", TOP_FAULTS)
def test_likeliest_tokens_that_are_none_are_asked_for_again(fault: Any):
    trajectory, _, errors, _ = live(Scripted([fault]), top_k=2)
    assert trajectory is not None
    assert trajectory.teacher is not None
    assert trajectory.teacher.top_tokens_NK == [[0, 1]] * (NEW * TURNS)
    assert errors == {"teacher": 1}


@pytest.mark.parametrize("fault", FAULTS)
def test_past_the_retries_the_trajectory_is_lost_and_never_a_zero(fault: Any):
    """Three lives of three attempts at their first turn each, at least."""
    teacher = Scripted([fault] * 99)
    trajectory, events, errors, scoring = live(teacher)
    assert trajectory is None
    assert not any(isinstance(e, TrajectoryFinished | RewardArrived) for e in events)
    lost = [e for e in events if isinstance(e, TrajectoryLost)]
    assert [(e.kind, e.final) for e in lost] == [("teacher", False), ("teacher", False),
                                                 ("teacher", True)]  # fmt: skip
    assert all(e.trajectory.reward is None for e in lost)
    assert errors["teacher"] >= 9
    assert scoring._lives == {}


def test_a_lost_trajectory_starts_again_with_the_same_seed():
    trajectory, events, errors, _ = live(Scripted([down] * 3))
    assert trajectory is not None
    assert (trajectory.attempt, trajectory.seed, trajectory.trajectory_id) == (1, 1, "0-0-r1")
    assert errors == {"teacher": 3}
    assert [e.kind for e in events if isinstance(e, TrajectoryLost)] == ["teacher"]


def test_a_failure_that_no_waiting_helps_is_not_tried_again():
    def unknown(request: ScoreRequest) -> TeacherScores:
        raise TeacherError("has no scores of these tokens", final=True)

    teacher = Scripted([unknown] + [right] * 99)
    trajectory, _, errors, _ = live(teacher)
    assert trajectory is not None
    assert (trajectory.attempt, errors) == (1, {"teacher": 1})


def test_a_trajectory_has_finished_once_its_last_turn_is_scored():
    """The verdict comes first; the event that releases waits for the teacher, the reward for it."""

    async def slowly(request: ScoreRequest) -> TeacherScores:
        await asyncio.sleep(0.04)
        return right(request)

    teacher = Scripted([right, right, slowly])
    trajectory, events, _, _ = live(teacher)
    assert trajectory is not None
    assert [type(e) for e in events][-2:] == [TrajectoryFinished, RewardArrived]
    assert trajectory.finished_s - trajectory.turns[-1].finished_s >= 0.04


def test_scores_that_come_late_of_an_earlier_turn_keep_their_place():
    async def slowly(request: ScoreRequest) -> TeacherScores:
        await asyncio.sleep(0.04)
        return right(request)

    trajectory, _, _, _ = live(Scripted([slowly]))
    assert trajectory is not None
    assert trajectory.teacher is not None
    assert trajectory.teacher.logprobs_N == pytest.approx([-0.1 * n for n in range(NEW * TURNS)])


def test_nothing_is_released_of_a_trajectory_that_its_verifier_has_lost():
    async def slowly(request: ScoreRequest) -> TeacherScores:
        await asyncio.sleep(0.04)
        return right(request)

    teacher = Scripted([right, right, slowly])
    trajectory, events, errors, scoring = live(teacher, Machine(verify_s=0.1, failing_verdicts=3))
    assert trajectory is not None
    assert trajectory.attempt == 1
    lost = next(e for e in events if isinstance(e, TrajectoryLost)).trajectory
    released = [e.trajectory for e in events if isinstance(e, TrajectoryFinished)]
    assert released == [trajectory]
    assert lost.teacher is None or lost is not trajectory
    assert errors == {"start": 3}
    assert scoring._lives == {}


def test_the_turn_waits_longer_each_time():
    times: list[float] = []

    def failing(request: ScoreRequest) -> TeacherScores:
        """The first turn, twice; the others' requests come between."""
        if request.start == 2 and len(times) < 3:
            times.append(asyncio.get_running_loop().time())
            if len(times) < 3:
                raise TeacherError("down")
        return right(request)

    trajectory, _, errors, _ = live(Scripted([failing] * 9), wait_s=0.02)
    assert trajectory is not None
    assert errors == {"teacher": 2}
    assert times[1] - times[0] >= 0.02
    assert times[2] - times[1] >= 0.04
