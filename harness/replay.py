"""Recorded trajectories played back: the engine decodes the recorded tokens at their real cost,
tool calls and verification take their recorded time. What differs between two replays is the
schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.accounting import ALIVE
from harness.config import RolloutConfig
from harness.protocols import (
    Clock,
    Engine,
    Event,
    Generation,
    Group,
    GroupClosed,
    Interval,
    RewardArrived,
    Sink,
    Task,
    Trajectory,
    TrajectoryFinished,
    TurnFinished,
    TurnGenerated,
    UsageError,
    VersionSpan,
)
from harness.sequences import begins
from harness.slots import Slots
from harness.teachers.scoring import Scoring
from harness.trajectory_lines import read
from harness.workload import Batches, transform

Emit = Callable[[Event], None]


def whole_batches(path: Path, rollout: RolloutConfig) -> Batches:
    """The batches of a run's trajectories.jsonl that can be played. Lost attempts are left out, and
    so are batches that were not whole (a dropped group, the last batch of an interrupted run): what
    is played is what a schedule trained on. Raises UsageError where the recording is not of this
    group size and this number of groups: all that follows the settings (the advantages, the
    ledger's buckets and plan, the manifest) would then be of another batch than the one played."""
    batches: dict[int, dict[int, list[Trajectory]]] = defaultdict(lambda: defaultdict(list))
    for trajectory, line in read(path):
        if "kl_penalty" in trajectory.report:
            raise UsageError(
                f"replay={path}: recorded under objective.kl.place=reward, its rewards contain "
                "a KL to weights that are gone; record a run without it"
            )
        if trajectory.reward is not None:
            batches[line["batch"]][trajectory.group].append(trajectory)
    if not batches:
        raise UsageError(f"replay={path}: no judged trajectory in it; record a run first")
    size = max(len(ts) for groups in batches.values() for ts in groups.values())
    count = max(len(groups) for groups in batches.values())
    if (size, count) != (rollout.group_size, rollout.groups_per_batch):
        raise UsageError(
            f"rollout.group_size={rollout.group_size} "
            f"rollout.groups_per_batch={rollout.groups_per_batch}: "
            f"replay={path} was recorded with {count} groups of {size}; "
            f"give rollout.group_size={size} rollout.groups_per_batch={count}"
        )
    whole = {
        batch: groups
        for batch, groups in sorted(batches.items())
        if len(groups) == count and all(len(ts) == size for ts in groups.values())
    }
    if not whole:
        raise UsageError(
            f"replay={path}: none of its {len(batches)} batches has {count} groups of {size}; "
            "take a run that lost fewer trajectories"
        )
    return whole


class Replay:
    """`recorded` (of `whole_batches`) in its order; starts again at its end. `workload` changes the
    recorded timings (harness/workload.py)."""

    def __init__(
        self,
        recorded: Batches,
        engine: Engine,
        clock: Clock,
        temperature: float,
        workload: str = "recorded",
        seed: int = 0,
        origin_s: float = 0.0,
        scoring: Scoring | None = None,
    ) -> None:
        """`origin_s` is the machine's time at which the clock began. With `scoring` a teacher
        scores the turns as they are played, whatever was recorded; one that it cannot score ends
        the run, because a replay starts nothing again."""
        played = transform(recorded, workload, seed)
        self._groups = [ts for groups in played.values() for ts in groups.values()]
        self._engine = engine
        self._clock = clock
        self._temperature = temperature
        self._origin_s = origin_s
        self._scoring = scoring
        self._slots = Slots()
        self._intervals: list[Interval] = []

    def begin(self, number: int, task: Task | None, seed: int, sink: Sink) -> Group:
        """Play group `number` (modulo the recording's length); task and seed are the
        recording's."""
        originals = self._groups[number % len(self._groups)]
        group = Group(number, originals[0].task_id, originals[0].difficulty)
        self._clock.spawn(self._group(sink, group, originals), f"group-{number}")
        return group

    async def _group(self, sink: Sink, group: Group, originals: Sequence[Trajectory]) -> None:
        lives = [
            self._clock.spawn(self._live(original, group.group, sink.emit), original.trajectory_id)
            for original in sorted(originals, key=lambda t: t.index)
        ]
        try:
            group.trajectories = [await life for life in lives]
            sink.emit(GroupClosed(group))
        except Exception as error:  # a defect: it must end the run
            sink.fail(error)

    async def _live(self, original: Trajectory, group: int, emit: Emit) -> Trajectory:
        slot, began_s = self._slots.take(), self._clock.now()
        try:
            return await self._play(original, group, emit)
        finally:
            life = (self._origin_s + began_s, self._origin_s + self._clock.now())
            self._intervals.append(Interval(f"rollout/{slot:02d}", ALIVE, *life))
            self._slots.give(slot)

    async def _play(self, original: Trajectory, group: int, emit: Emit) -> Trajectory:
        clock = self._clock
        played = Trajectory(
            trajectory_id=f"{group}-{original.index}",
            task_id=original.task_id,
            difficulty=original.difficulty,
            group=group,
            index=original.index,
            seed=original.seed,
            tokens_T=original.tokens_T,
            action_mask_T=original.action_mask_T,
            behaviour_logprobs_T=original.behaviour_logprobs_T,
            rewritten_at=original.rewritten_at,
            end=original.end,
            started_s=clock.now(),
            sandbox_start_s=original.sandbox_start_s,
            verify_s=original.verify_s,
            report=original.report,
        )
        await clock.sleep(original.sandbox_start_s)
        for number, turn in enumerate(original.turns):
            started_s = clock.now()
            action = original.tokens_T[turn.action_start : turn.action_end]
            completion = await self._engine.generate(
                Generation(
                    session=played.trajectory_id,
                    prompt_T=original.tokens_T[
                        begins(original, turn.action_start) : turn.action_start
                    ],
                    max_new_tokens=len(action),
                    temperature=self._temperature,
                    seed=original.seed,
                    stop_tokens=(),
                    forced_T=action,
                )
            )
            played.version_spans += [
                VersionSpan(s.version, turn.action_start + s.start, turn.action_start + s.end)
                for s in completion.version_spans
            ]
            generated_s = clock.now()
            if self._scoring is not None:
                self._scoring.turn(played, turn.action_start, turn.action_end)
            again = replace(turn, started_s=started_s, generated_s=generated_s)
            played.turns.append(again)
            emit(TurnGenerated(played, number))
            await clock.sleep(turn.exec_s)
            again.finished_s = clock.now()
            emit(TurnFinished(played, number))
        await self._engine.release(played.trajectory_id)
        if self._scoring is not None:
            await self._scoring.finished(played)
        played.finished_s = clock.now()
        emit(TrajectoryFinished(played))
        await clock.sleep(original.reward_s - original.finished_s)
        played.reward, played.reward_s = original.reward, clock.now()
        emit(RewardArrived(played))
        return played

    def take_intervals(self) -> list[Interval]:
        """The lives of trajectories since the last call: no sandbox is busy in a replay."""
        taken, self._intervals = self._intervals, []
        return taken
