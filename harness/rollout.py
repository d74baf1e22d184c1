"""The agent loop: prompt -> engine -> action -> sandbox -> observation, and its events.

Rules that every schedule shares: only a submitted trajectory is verified, one that a limit ended
has reward 0; an infrastructure failure is never a reward: verification is tried again on the same
submission, a rollout starts again with the same seed, both at most `retries` times, and then the
whole group is dropped.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, NamedTuple, cast

from environments.protocols import InfrastructureKind
from harness.accounting import ALIVE
from harness.agents import Agent, action_start
from harness.config import RolloutConfig
from harness.outcomes import shaped
from harness.protocols import (
    Clock,
    Environment,
    Event,
    Group,
    GroupClosed,
    InfrastructureError,
    Interval,
    RewardArrived,
    Sandbox,
    SandboxProvider,
    Sink,
    Submission,
    Task,
    Trajectory,
    TrajectoryFinished,
    TrajectoryLost,
    Turn,
    TurnFinished,
    TurnGenerated,
    Verdict,
)
from harness.slots import Slots
from harness.teachers.scoring import Scoring
from harness.timeline import blocked
from harness.tries import Tries

Emit = Callable[[Event], None]
MakeAgent = Callable[[Task], Agent]
Meet = Callable[[Task, Trajectory], Task]
Penalty = Callable[[Trajectory], Coroutine[Any, Any, float]]


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from named parts: the same parts give the same seed on every machine."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


class _Track(NamedTuple):
    """What all intervals of one life say: made once, a life has hundreds."""

    resource: str
    args: Mapping[str, Any]

    @property
    def blocked(self) -> _Track:
        return _Track(blocked(self.resource), self.args)


class Rollouts:
    """Runs trajectories of one environment; batches of groups for training, single ones for
    evaluation."""

    def __init__(
        self,
        environment: Environment,
        make_agent: MakeAgent,
        provider: SandboxProvider,
        clock: Clock,
        limits: RolloutConfig,
        origin_s: float,
        penalty: Penalty | None = None,
        verification: AbstractAsyncContextManager[Any] | None = None,
        scoring: Scoring | None = None,
        meet: Meet = lambda task, trajectory: task,
        kept: Sequence[Trajectory] = (),
    ) -> None:
        """`penalty` of a finished trajectory is subtracted from its verdict's reward (KL in the
        reward); the verdict's own stays in the trajectory's report. Every verification happens
        inside `verification`, which may limit how many do at once. With `scoring` a teacher scores
        each turn while its tool call runs, and a trajectory has finished once all are scored.
        `meet` is the task as one attempt meets it, where attempts differ. What is in `kept` has
        ended already: it is not lived again, what happened in it is told at once."""
        self._kept = {(t.group, t.index, t.attempt): t for t in kept}
        self._tries = Tries(kept, limits)
        self._penalty = penalty
        self._scoring = scoring
        self._meet = meet
        self._verification = verification or nullcontext()
        self._environment = environment
        self._make_agent = make_agent
        self._provider = provider
        self._clock = clock
        self._limits = limits
        self._origin_s = origin_s
        self.slots = Slots()
        self._intervals: list[Interval] = []
        self.infrastructure_errors: Counter[str] = Counter()
        self._told: set[tuple[str, str]] = set()

    def begin(self, number: int, task: Task, seed: int, sink: Sink) -> Group:
        """Start `group_size` trajectories of one task."""
        group = Group(number, task.task_id, task.difficulty)
        self._clock.spawn(self._group(sink, group, task, seed), f"group-{number}")
        return group

    async def _group(self, sink: Sink, group: Group, task: Task, seed: int) -> None:
        lives = [
            self._clock.spawn(
                self.run(task, group.group, i, derive_seed(seed, group.group, i), sink.emit),
                f"trajectory-{group.group}-{i}",
            )
            for i in range(self._limits.group_size)
        ]
        try:
            ended = [await life for life in lives]
            group.dropped = any(t is None for t in ended)
            group.trajectories = [] if group.dropped else [t for t in ended if t is not None]
            sink.emit(GroupClosed(group))
        except Exception as error:  # a defect, not an infrastructure failure: it must end the run
            sink.fail(error)

    async def run(
        self, task: Task, group: int, index: int, seed: int, emit: Emit, label: str = ""
    ) -> Trajectory | None:
        """One trajectory, tried again after infrastructure failures; None when lost for good.
        `label` goes before its id (evaluation uses it)."""
        last = self._tries.last(group, index)
        for attempt in range(last + 1):
            kept = self._kept.pop((group, index, attempt), None)
            if kept is not None:
                if self._tell_again(kept, attempt == last, emit):
                    return kept
                continue
            suffix = f"-r{attempt}" if attempt else ""
            trajectory = Trajectory(
                trajectory_id=f"{label}{group}-{index}{suffix}",
                task_id=task.task_id,
                difficulty=task.difficulty,
                group=group,
                index=index,
                seed=seed,
                attempt=attempt,
            )
            try:
                await self._live(self._meet(task, trajectory), trajectory, emit)
                return trajectory
            except InfrastructureError as error:
                trajectory.infrastructure_error = error.kind
                self.infrastructure_errors[error.kind] += 1
                self._tell(task, error)
                emit(TrajectoryLost(trajectory, error.kind, attempt == last))
        return None

    def _tell_again(self, kept: Trajectory, last: bool, emit: Emit) -> bool:
        """What happened in a trajectory that has ended; whether it was judged."""
        for turn in range(len(kept.turns)):
            emit(TurnGenerated(kept, turn))
            emit(TurnFinished(kept, turn))
        if kept.infrastructure_error is not None:
            kind = cast(InfrastructureKind, kept.infrastructure_error)
            self.infrastructure_errors[kind] += 1
            emit(TrajectoryLost(kept, kind, last))
            return False
        emit(TrajectoryFinished(kept))
        emit(RewardArrived(kept))
        return True

    def _tell(self, task: Task, error: InfrastructureError) -> None:
        """One line for the first trajectory that a task loses in a way: the counts say how many."""
        if (task.task_id, error.kind) not in self._told:
            self._told.add((task.task_id, error.kind))
            line = " ".join(str(error).split())
            print(f"trajectory lost: task {task.task_id}: {line}", file=sys.stderr, flush=True)

    async def _live(self, task: Task, trajectory: Trajectory, emit: Emit) -> None:
        clock, environment = self._clock, self._environment
        agent = self._make_agent(task)
        slot = self.slots.take()
        track = _Track(
            f"sandbox/{slot:02d}",
            {"trajectory": trajectory.trajectory_id, "group": trajectory.group},
        )
        sandbox: Sandbox | None = None
        penalty = finishing = None
        trajectory.started_s = clock.now()
        try:
            try:
                sandbox = await self._provider.start(environment.sandbox_spec(task))
                await environment.prepare(task, sandbox)
                trajectory.sandbox_start_s = clock.now() - trajectory.started_s
                self._busy(track, "start", trajectory.started_s)
                await self._turns(task, trajectory, agent, sandbox, track, emit)
            finally:
                await agent.close(trajectory)
            finishing = self._finish(trajectory, emit)
            if self._penalty is not None:  # while the verifier runs
                penalty = clock.spawn(
                    self._penalty(trajectory), f"penalty-{trajectory.trajectory_id}"
                )
            verdict = Verdict(0.0, {"submitted": False})
            if trajectory.end == "submit":
                collecting_s = clock.now()
                submission = await environment.collect(task, sandbox)
                self._busy(track, "collect", collecting_s)
                if submission.sandbox is None:
                    await sandbox.stop()
                verdict = await self._verify(task, trajectory, submission, track)
        finally:
            stopping_s = clock.now()
            try:
                if sandbox is not None:
                    await sandbox.stop()
                    self._busy(track, "stop", stopping_s)
            finally:  # what it did not work in its life, it was blocked
                self._busy(track.blocked, ALIVE, trajectory.started_s)
                self.slots.give(slot)
                if self._scoring is not None and finishing is None:
                    await self._scoring.forget(trajectory)
        # Only now: until its sandbox is gone the trajectory can still be lost.
        if finishing is not None:
            await finishing
        if penalty is not None:
            verdict = shaped(trajectory, verdict, await penalty)
        trajectory.reward, trajectory.report = verdict.reward, verdict.report
        trajectory.reward_s = clock.now()
        emit(RewardArrived(trajectory))

    def _finish(self, trajectory: Trajectory, emit: Emit) -> Awaitable[None] | None:
        """The tokens are fixed. Where a teacher has to score the last of them, that goes on beside
        the verifier, and is what is returned."""
        if self._scoring is None:
            trajectory.finished_s = self._clock.now()
            emit(TrajectoryFinished(trajectory))
            return None
        scored = self._scoring.announce(trajectory, emit)
        return self._clock.spawn(scored, f"scored-{trajectory.trajectory_id}")

    async def _turns(
        self,
        task: Task,
        trajectory: Trajectory,
        agent: Agent,
        sandbox: Sandbox,
        track: _Track,
        emit: Emit,
    ) -> None:
        """Act and observe until submit or a limit; sets `trajectory.end`."""
        clock, environment = self._clock, self._environment
        message = environment.first_message(task)
        began_s = clock.now()  # the wait for a free sandbox is not the agent's time
        while trajectory.end is None:
            started_s = clock.now()
            if started_s - began_s > min(self._limits.time_limit_s, task.time_limit_s):
                trajectory.end = "time_limit"
                return
            before = len(trajectory.tokens_T)
            text = await agent.act(trajectory, message)
            if len(trajectory.tokens_T) == before and trajectory.end is not None:
                return  # the context was full: no turn was taken
            turn = Turn(action_start(trajectory), len(trajectory.tokens_T), started_s, clock.now())
            trajectory.turns.append(turn)
            if self._scoring is not None:
                self._scoring.turn(trajectory, turn.action_start, turn.action_end)
            emit(TurnGenerated(trajectory, len(trajectory.turns) - 1))
            command = environment.action(text) if text is not None else None
            if text is not None and command is None:
                trajectory.end = "submit"
            elif command is not None:
                called_s = clock.now()
                await self._wait(trajectory)
                exec_started_s = clock.now()
                turn.waited_s = exec_started_s - called_s
                result = await sandbox.exec(command, timeout_s=environment.command_timeout_s)
                turn.exec_s = clock.now() - called_s
                turn.exit_code, turn.timed_out = result.exit_code, result.timed_out
                turn.out_of_memory = result.out_of_memory
                self._busy(track, "exec", exec_started_s)
                message = environment.observation(result)
            turn.finished_s = clock.now()
            emit(TurnFinished(trajectory, len(trajectory.turns) - 1))
            if trajectory.end is None and len(trajectory.turns) >= self._limits.max_turns:
                trajectory.end = "turn_limit"

    async def _wait(self, trajectory: Trajectory) -> None:
        """rollout.tool_wait before the latest turn's command; the sandbox is idle meanwhile."""
        wait = self._limits.tool_wait
        if wait.median_s:
            draw = random.Random(derive_seed(trajectory.seed, "tool", len(trajectory.turns)))
            await self._clock.sleep(draw.lognormvariate(math.log(wait.median_s), wait.sigma))

    async def _verify(
        self, task: Task, trajectory: Trajectory, submission: Submission, track: _Track
    ) -> Verdict:
        """Judge the same submission, again after an infrastructure failure."""
        started_s = self._clock.now()
        async with self._verification:
            judging_s = self._clock.now()
            verdict = await self._judge(task, submission)
        trajectory.verify_s = self._clock.now() - started_s
        self._busy(track, "verify", judging_s)
        if not math.isfinite(verdict.reward):
            raise InfrastructureError("parser", f"{task.task_id}: reward {verdict.reward}")
        return verdict

    async def _judge(self, task: Task, submission: Submission) -> Verdict:
        attempt = 0
        while True:
            try:
                return await self._environment.verify(task, submission, self._provider)
            except InfrastructureError as error:
                if attempt == self._limits.retries:
                    raise  # counted where the trajectory is lost
                self.infrastructure_errors[error.kind] += 1
                attempt += 1

    def take_intervals(self) -> list[Interval]:
        """What sandboxes and verifiers were busy with since the last call."""
        taken, self._intervals = self._intervals, []
        return taken

    def _busy(self, track: _Track, name: str, started_s: float) -> None:
        """From then until now."""
        origin_s = self._origin_s
        end_s = origin_s + self._clock.now()
        self._intervals.append(
            Interval(track.resource, name, origin_s + started_s, end_s, track.args)
        )
