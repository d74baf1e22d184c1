"""A world whose groups close when it is told to, under the real Training."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.budget import Budget
from harness.clock import WallClock
from harness.config import BudgetConfig, Config, ObjectiveConfig
from harness.flow import Resumed
from harness.objectives.grpo import Grpo
from harness.protocols import (
    Group,
    GroupClosed,
    Interval,
    RewardArrived,
    Sink,
    StepStats,
    Task,
    Trajectory,
    TrajectoryFinished,
    VersionSpan,
)
from harness.timeline import Timeline
from harness.training import Training

TASKS = [Task(f"t{i}", "train", "easy" if i % 2 else "hard", {}) for i in range(40)]


@dataclass
class World:
    """Engine, learner and rollouts of a run. `pace` is awaited wherever the learner or the engine
    take time, so that groups close meanwhile. A group's tokens are of the versions that the engine
    has when it begins and when it closes."""

    group_size: int = 2
    groups_per_batch: int = 2
    pace: Callable[[], Any] = lambda: asyncio.sleep(0)
    engine_version: int = 0
    begun: list[tuple[int, str, int]] = field(default_factory=list)  # number, task, engine version
    open: dict[int, tuple[Group, Sink, int]] = field(default_factory=dict)
    accumulated: list[list[str]] = field(default_factory=list)
    published_while_open: list[int] = field(default_factory=list)
    begun_while_learning: list[int] = field(default_factory=list)
    learning: bool = False
    training: Any = None
    ended: dict[int, tuple[int, int]] = field(default_factory=dict)  # its tokens' versions
    known: dict[int, tuple[int, int]] = field(default_factory=dict)  # the same of a killed run
    resumed: Resumed | None = None

    # rollouts

    def begin(self, number: int, task: Task, seed: int, sink: Sink) -> Group:
        group = Group(number, task.task_id, task.difficulty)
        self.begun.append((number, task.task_id, self.engine_version))
        self.open[number] = (group, sink, self.engine_version)
        if self.learning:
            self.begun_while_learning.append(number)
        if number in self.known:
            asyncio.get_running_loop().call_soon(self._close_again, number)
        return group

    def _close_again(self, number: int) -> None:
        if number in self.open:
            self.close(number)

    def close(self, number: int, *, dropped: bool = False) -> None:
        """Its trajectories end, the first with reward 1, the others with 0."""
        group, sink, began = self.open.pop(number)
        first, last = self.known.get(number, (began, self.engine_version))
        self.ended[number] = first, last
        spans = [VersionSpan(first, 1, 3), VersionSpan(last, 3, 5)]
        for index in range(self.group_size):
            trajectory = Trajectory(
                f"{number}-{index}", group.task_id, group.difficulty, number, index, 0,
                tokens_T=[7] * 5, action_mask_T=[0, 1, 1, 1, 1], version_spans=spans,
                reward=float(index == 0), end="submit",
            )  # fmt: skip
            sink.emit(TrajectoryFinished(trajectory))
            if not dropped:
                sink.emit(RewardArrived(trajectory))
                group.trajectories.append(trajectory)
        group.dropped = dropped
        sink.emit(GroupClosed(group))

    # learner and engine

    async def accumulate(self, trajectories: Sequence[Any], coefficients: Sequence[float]) -> None:
        self.learning = True
        await self.pace()
        self.accumulated[-1] += [t.trajectory_id for t in trajectories]
        self.learning = False

    async def step(self, normaliser: float) -> StepStats:
        self.learning = True
        await self.pace()
        self.learning = False
        self.accumulated.append([])
        return StepStats(self.engine_version + 1, 1.0, False, 1e-3, 0, 0)

    async def publish(self) -> tuple[str, int]:
        await self.pace()
        return "weights", self.engine_version + 1

    async def update_weights(self, path: str, version: int, in_flight: bool) -> None:
        self.published_while_open.append(len(self.open))
        await self.pace()
        self.engine_version = version

    async def drain_intervals(self) -> list[Interval]:
        return [Interval("learner/0", "step", 0.0, 1.0)]

    # running

    def run(
        self,
        schedule: Any,
        updates: int,
        outside: Callable[[World], Any],
        room: int = 10**6,
    ) -> Training:
        """Run a schedule; `outside(world)` is a coroutine that lets rollouts end meanwhile."""

        async def body() -> Training:
            clock = WallClock()
            self.accumulated.append([])
            self.training = Training(
                learner=self,  # pyright: ignore[reportArgumentType]
                engine=self,  # pyright: ignore[reportArgumentType]
                objective=Grpo(ObjectiveConfig(), self.group_size),
                budget=Budget(BudgetConfig("updates", updates), devices=2, clock=clock),
                clock=clock,
                timeline=Timeline(0.0),
                begin=self.begin,
                take_intervals=list,
                tasks=TASKS,
                groups_per_batch=self.groups_per_batch,
                chunk_tokens=100,
                seed=0,
                group_size=self.group_size,
                room=room,
                on_update=lambda row: None,
                on_trajectory=lambda trajectory, batch: None,
            )
            if self.resumed is not None:
                self.training.resumed_flow, self.training.going_on = self.resumed, True
            closing = asyncio.create_task(outside(self))
            try:
                await asyncio.wait_for(schedule.run(self.training), timeout=20)
            finally:
                closing.cancel()
                await asyncio.gather(closing, return_exceptions=True)
            return self.training

        return asyncio.run(body())


async def closing_at_random(
    world: World, seed: int, slow: frozenset[int] = frozenset(), patience: int = 0
) -> None:
    """For ever: now and then an open group closes; those in `slow` only when nothing else has been
    open for a while."""
    draw = random.Random(seed)
    waited = 0
    while True:
        await asyncio.sleep(0)
        quick = [number for number in world.open if number not in slow]
        waited = 0 if quick else waited + 1
        if quick and draw.random() < 0.5:
            world.close(draw.choice(quick))
        elif world.open and waited > patience:
            world.close(draw.choice(list(world.open)))


async def closing_in_order(world: World) -> None:
    """For ever: what began first closes first, at once."""
    while True:
        await asyncio.sleep(0)
        if world.open:
            world.close(next(iter(world.open)))


def settings(**schedule: Any) -> Config:
    config = Config()
    for key, value in schedule.items():
        assert hasattr(config.schedule, key)
        setattr(config.schedule, key, value)
    return config
