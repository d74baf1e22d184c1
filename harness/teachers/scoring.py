"""Scores a trajectory's turns while its tool calls run, and decides what a failure means.

A turn that a teacher did not score (it is down, restarts, takes longer than `timeout_s`, returns
too few scores or none that are numbers) waits and is asked for again, `retries` times; then its
trajectory is lost to infrastructure, of kind `teacher`, and starts again like any lost one. So an
update is made of trajectories that are scored whole, or not at all.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from harness.protocols import (
    Clock,
    InfrastructureError,
    Interval,
    TeacherScores,
    Trajectory,
    TrajectoryFinished,
)
from harness.sequences import begins
from harness.teachers.protocol import ScoreRequest, Teacher, TeacherError, check_scores


@dataclass
class _Life:
    """One trajectory's requests in order of its turns; `scored` of them are in its scores."""

    turns: list[Awaitable[None]] = field(default_factory=list)
    found: dict[int, TeacherScores] = field(default_factory=dict)
    scored: int = 0
    error: InfrastructureError | None = None


class Scoring:
    """The rollouts' way to a teacher. `errors` counts failed attempts that were tried again; the
    last one is counted where the trajectory is lost."""

    def __init__(
        self,
        teacher: Teacher,
        clock: Clock,
        *,
        temperature: float,
        top_k: int,
        retries: int,
        timeout_s: float,
        wait_s: float,
    ) -> None:
        self._teacher = teacher
        self._clock = clock
        self._temperature, self._top_k = temperature, top_k
        self._retries, self._timeout_s, self._wait_s = retries, timeout_s, wait_s
        self._lives: dict[str, _Life] = {}
        self.errors: Counter[str] = Counter()

    def turn(self, trajectory: Trajectory, start: int, end: int) -> None:
        """Begin to score the generated tokens [start, end), the last so far. Raises the
        InfrastructureError of an earlier turn that is lost already."""
        life = self._lives.setdefault(trajectory.trajectory_id, _Life())
        if life.error is not None:
            raise life.error
        if end == start:
            return
        first = begins(trajectory, start)
        request = ScoreRequest(
            trajectory.trajectory_id, trajectory.tokens_T[first:end], start - first,
            self._temperature, self._top_k,
        )  # fmt: skip
        number = len(life.turns)
        life.turns.append(
            self._clock.spawn(
                self._turn(trajectory, life, number, request), f"score-{request.session}-{number}"
            )
        )

    async def finished(self, trajectory: Trajectory) -> None:
        """Wait until every turn is scored. Raises InfrastructureError where one is lost."""
        life = self._lives.setdefault(trajectory.trajectory_id, _Life())
        try:
            for turn in life.turns:
                await turn
            if trajectory.teacher is None:  # it has no generated token
                trajectory.teacher = TeacherScores()
        finally:
            await self.forget(trajectory)

    async def announce(
        self, trajectory: Trajectory, emit: Callable[[TrajectoryFinished], None]
    ) -> None:
        """TrajectoryFinished once every turn is scored. Raises InfrastructureError."""
        await self.finished(trajectory)
        if trajectory.infrastructure_error is None:  # its verifier may have lost it meanwhile
            trajectory.finished_s = self._clock.now()
            emit(TrajectoryFinished(trajectory))

    async def forget(self, trajectory: Trajectory) -> None:
        """The trajectory has ended, however it did."""
        if self._lives.pop(trajectory.trajectory_id, None) is not None:
            await self._teacher.release(trajectory.trajectory_id)

    async def _turn(
        self, trajectory: Trajectory, life: _Life, number: int, request: ScoreRequest
    ) -> None:
        try:
            life.found[number] = await self._scores(request)
        except InfrastructureError as error:
            life.error = error
            raise
        while life.scored in life.found:  # in the order of the turns, whatever came first
            if trajectory.teacher is None:
                trajectory.teacher = TeacherScores()
            trajectory.teacher.extend(life.found.pop(life.scored))
            life.scored += 1

    async def _scores(self, request: ScoreRequest) -> TeacherScores:
        """Usable scores, after as many attempts as it may take."""
        attempt = 0
        while True:
            try:
                return await self._once(request)
            except TeacherError as error:
                if error.final or attempt == self._retries:
                    raise InfrastructureError("teacher", str(error)) from error
                self.errors["teacher"] += 1
                self._tell(error)
            await self._clock.sleep(self._wait_s * 2**attempt)
            attempt += 1

    async def _once(self, request: ScoreRequest) -> TeacherScores:
        try:
            async with self._clock.timeout(self._timeout_s):
                scores = await self._teacher.score(request)
        except TimeoutError as error:
            raise TeacherError(f"no answer within {self._timeout_s:g} s") from error
        check_scores(request, scores)
        return scores

    def _tell(self, error: TeacherError) -> None:
        """One line for the first failure: the counts say how many there were."""
        if self.errors["teacher"] == 1:
            line = " ".join(str(error).split())
            print(f"teacher: {line}; the turn is tried again", file=sys.stderr, flush=True)

    async def drain_intervals(self) -> list[Interval]:
        return await self._teacher.drain_intervals()
