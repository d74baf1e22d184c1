"""Budgets that end inside a batch, under real schedules on recorded rollouts; and the marks on the
way. Only the gradients are left out."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from baselines.asynchronous import Asynchronous
from baselines.one_step_off import OneStepOff
from baselines.sync import Sync
from harness.budget import Budget, BudgetEnded
from harness.clock import WallClock
from harness.composition import compose
from harness.config import BudgetConfig, ObjectiveConfig, RolloutConfig
from harness.objectives.grpo import Grpo
from harness.protocols import Completion, Generation, Interval, StepStats, Task, VersionSpan
from harness.replay import Replay, whole_batches
from harness.snapshots import Snapshots
from harness.timeline import Timeline
from harness.training import Training
from harness.update_row import Row
from thundersync.stream import Stream

SCHEDULES = {
    "sync": ["schedule=sync"],
    "stream": ["schedule=stream"],
    "one_step_off": ["schedule=one_step_off"],
    "async, fresh": ["schedule=async", "schedule.max_staleness=0"],
    "async": ["schedule=async", "schedule.max_staleness=2"],
}
SHAPE = RolloutConfig(group_size=4, groups_per_batch=3)
BATCH = 12  # trajectories


class Parts:
    """An engine that makes the recorded tokens at once, and a learner whose weights are a number in
    a file, the one before it removed. It takes `learn_s` for every piece of work."""

    def __init__(self, folder: Path, learn_s: float = 0.0) -> None:
        self._folder, self._learn_s = folder, learn_s
        self._intervals: list[Interval] = []
        self.version = 0
        self.after_first_step: Callable[[], Awaitable[None]] | None = None
        self.loaded: list[tuple[str, int]] = []

    async def generate(self, request: Generation) -> Completion:
        tokens = list(request.forced_T or ())
        span = VersionSpan(self.version, 0, len(tokens))
        return Completion(tokens, [0.0] * len(tokens), [span], "stop")

    async def release(self, session: str) -> None: ...

    async def update_weights(self, path: str, version: int, in_flight: bool = True) -> None:
        self.loaded.append((Path(path).read_text(), version))

    async def _work(self, *unused: Any) -> None:
        await asyncio.sleep(self._learn_s)

    accumulate = capture = commit = discard = fold = drop = _work

    async def step(self, normaliser: float) -> StepStats:
        started_s = time.monotonic()
        await self._work()
        self._intervals.append(Interval("learner/0", "step", started_s, time.monotonic()))
        self.version += 1
        if self.after_first_step is not None and self.version == 1:
            await self.after_first_step()
        return StepStats(self.version, 0.5, False, 1e-3, 0, 0)

    async def publish(self) -> tuple[str, int]:
        for old in self._folder.glob("weights-*"):
            old.unlink()
        path = self._folder / f"weights-{self.version}"
        path.write_text(f"weights of version {self.version}")
        return str(path), self.version

    async def drain_intervals(self) -> list[Interval]:
        drained, self._intervals = self._intervals, []
        return drained


Play = Callable[..., tuple[Training, Parts, BaseException | None]]


@pytest.fixture(scope="module")
def quick(small_recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same recording at a tenth of its delays."""
    path = tmp_path_factory.mktemp("quick") / "trajectories.jsonl"
    with path.open("w") as out:
        for line in map(json.loads, small_recording.read_text().splitlines()):
            line["sandbox_start_s"] *= 0.1
            line["reward_s"] = line["finished_s"] + 0.1 * (line["reward_s"] - line["finished_s"])
            for turn in line["turns"]:
                turn["exec_s"] *= 0.1
            out.write(json.dumps(line) + "\n")
    return path


@pytest.fixture
def play(quick: Path, tmp_path: Path) -> Play:
    """Train with one schedule under one budget; the training, its parts, how it ended."""

    def run(
        schedule: str,
        kind: str,
        limit: float,
        learn_s: float = 0.0,
        marks: Sequence[float] = (),
        room: int = 100,
        snapshots: list[Snapshots] | None = None,
        pause_s: float = 0.0,
    ) -> tuple[Training, Parts, BaseException | None]:
        async def body() -> tuple[Training, Parts, BaseException | None]:
            clock, parts = WallClock(), Parts(tmp_path, learn_s)
            source = Replay(whole_batches(quick, SHAPE), cast(Any, parts), clock, 1.0)
            budget = Budget(BudgetConfig(kind, limit), devices=2, clock=clock)
            kept = Snapshots(marks, tmp_path)

            async def pause() -> None:
                with budget.paused("snapshot"):
                    await asyncio.sleep(pause_s)

            parts.after_first_step = pause if pause_s else None

            def on_update(row: Row) -> None:
                assert training.published is not None
                kept.offer(budget, training.published, training.version)

            chosen = compose(SCHEDULES[schedule])
            plan = {
                "sync": Sync, "stream": Stream, "async": Asynchronous, "one_step_off": OneStepOff,
            }[chosen.schedule.name](chosen)  # fmt: skip
            training = Training(
                learner=cast(Any, parts),
                engine=cast(Any, parts),
                objective=Grpo(ObjectiveConfig(), SHAPE.group_size),
                budget=budget,
                clock=clock,
                timeline=Timeline(clock.origin_s),
                begin=cast(Any, source.begin),
                take_intervals=list,
                tasks=[Task("t", "train", "easy", {})],
                groups_per_batch=SHAPE.groups_per_batch,
                chunk_tokens=500,
                seed=0,
                group_size=SHAPE.group_size,
                room=room,
                release=plan.release,
                on_update=on_update,
                on_trajectory=lambda trajectory, batch: None,
            )
            ended = None
            try:
                await plan.run(training)
            except BudgetEnded as error:
                ended = error
            budget.end()
            await clock.cancel_all()
            kept.end(budget, training.published, training.version)
            if snapshots is not None:
                snapshots.append(kept)
            return training, parts, ended

        return asyncio.run(body())

    return run


# How many tokens a group will take is not known when it begins: a schedule that begins several
# batches at once may spend a small budget on more of them than it can finish.
BY_BATCH = [name for name in SCHEDULES if name != "async"]


@pytest.fixture(params=list(SCHEDULES))
def schedule(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_budget_of_whole_batches_is_spent_to_the_last_trajectory(play: Play, schedule: str):
    training, _, _ = play(schedule, "trajectories", 2 * BATCH)
    assert (len(training.rows), training.budget.spent) == (2, 2 * BATCH)
    assert training.budget.discarded["trajectories"] == 0


def test_a_slow_learner_loses_nothing_that_is_paid_for(play: Play, schedule: str):
    """Groups that closed while it was busy make their updates after the budget is spent."""
    training, _, _ = play(schedule, "trajectories", 4 * BATCH, learn_s=0.05)
    assert (len(training.rows), training.budget.spent) == (4, 4 * BATCH)
    assert training.budget.discarded["trajectories"] == 0


def test_tokens_leave_no_whole_batch_of_closed_groups(play: Play):
    whole, _, _ = play("async", "updates", 1)
    limit = 4 * whole.budget.counters.tokens
    training, _, _ = play("async", "tokens", limit, learn_s=0.05)
    budget = training.budget
    assert budget.spent >= limit
    closed = sum(share.judged == share.size for share in budget._shares.values())
    assert closed < SHAPE.groups_per_batch
    assert len(training.rows) >= 2


@pytest.mark.parametrize("schedule", ["sync", "stream"])
def test_trajectories_end_the_batch_in_which_they_run_out(play: Play, schedule: str):
    """Not one more is judged, however long the learner was busy meanwhile."""
    training, parts, ended = play(schedule, "trajectories", BATCH + 5, learn_s=0.02)
    assert str(ended) == f"budget.trajectories={BATCH + 5} is spent"
    assert (len(training.rows), training.budget.spent) == (1, BATCH + 5)
    discarded = training.budget.discarded
    assert (discarded["trajectories"], discarded["unfinished"]) == (5, BATCH - 5)
    assert discarded["tokens"] > 0
    assert discarded["seconds"] > 0
    assert parts.loaded == [("weights of version 1", 1)]  # the last published


@pytest.mark.parametrize("schedule", BY_BATCH)
def test_tokens_end_the_batch_in_which_they_run_out(play: Play, schedule: str, quick: Path):
    whole, _, _ = play(schedule, "updates", 1)
    a_batch = whole.budget.counters.tokens
    limit = a_batch + a_batch // 2
    training, _, ended = play(schedule, "tokens", limit)
    assert ended is not None
    assert len(training.rows) == 1
    largest = max(t.action_tokens for g in whole_batches(quick, SHAPE)[0].values() for t in g)
    assert limit <= training.budget.spent < limit + largest
    assert training.budget.discarded["tokens"] == training.budget.spent - a_batch


@pytest.mark.parametrize("schedule", BY_BATCH)
def test_an_unlucky_budget_of_tokens_still_makes_the_update_that_it_paid_for(
    play: Play, schedule: str
):
    """One token less than two batches: the last trajectory's last turn reaches it."""
    whole, _, _ = play(schedule, "updates", 1)
    a_batch = whole.budget.counters.tokens
    training, _, _ = play(schedule, "tokens", 2 * a_batch - 1)
    assert len(training.rows) == 2
    assert training.budget.spent == 2 * a_batch


def test_a_budget_below_one_batch_makes_no_update_and_says_so(play: Play, schedule: str):
    training, parts, ended = play(schedule, "trajectories", BATCH - 1)
    assert ended is not None
    assert (training.rows, training.published, parts.loaded) == ([], None, [])
    assert training.budget.spent == BATCH - 1
    said = training.budget.without_update()
    assert said is not None and "nothing was learnt" in said


def test_a_time_budget_discards_the_open_batch(play: Play, schedule: str):
    training, _, ended = play(schedule, "device_s", 0.1)
    assert ended is not None
    assert 0.1 <= training.budget.spent < 0.4
    assert training.budget.discarded["unfinished"] + training.budget.discarded["trajectories"] > 0


@pytest.mark.parametrize("schedule", ["sync", "stream"])
def test_marks_keep_the_weights_published_last(play: Play, schedule: str, tmp_path: Path):
    kept: list[Snapshots] = []
    marks = (0.1, 0.25, 0.3, 0.75, 0.99)
    training, _, _ = play(
        schedule, "trajectories", 4 * BATCH + 2, marks=marks, snapshots=kept
    )  # 50: updates at 12, 24, 36, 48 of 50
    (snapshots,) = kept
    got = [(at.mark, at.spent, at.updates, at.version) for at in snapshots.kept]
    assert got == [
        (0.1, 0, 0, 0),  # at 5 there was no update yet
        (0.25, 12, 1, 1), (0.3, 12, 1, 1), (0.75, 36, 3, 3),
        (0.99, 50, 4, 4),  # no update came after it: the last published weights
    ]  # fmt: skip
    texts = [at.path and at.path.read_text()[-1] for at in snapshots.kept]
    assert texts == [None, "1", "1", "3", "4"]
    # Files are whole, one per version; the learner removes its own older ones, not these.
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        "snapshot-000001.safetensors", "snapshot-000003.safetensors", "weights-4",
    ]  # fmt: skip
    snapshots.remove()
    assert [f.name for f in tmp_path.iterdir()] == ["weights-4"]
    assert training.budget.counters.paused_s["snapshot"] > 0


@pytest.mark.parametrize("room", [SHAPE.group_size, 100])
@pytest.mark.parametrize("limit", [BATCH, BATCH + 4, 2 * BATCH + 5])
@pytest.mark.parametrize("schedule", ["one_step_off", "async, fresh", "async"])
def test_a_flow_begins_nothing_that_no_update_could_be_made_of(
    play: Play, schedule: str, limit: int, room: int
):
    """As many updates as sync makes, and the rest of the budget is left."""
    training, _, _ = play(schedule, "trajectories", limit, room=room, learn_s=0.01)
    budget = training.budget
    updates = limit // BATCH
    assert (len(training.rows), budget.spent) == (updates, updates * BATCH)
    assert budget.discarded["trajectories"] == budget.discarded["unfinished"] == 0


@pytest.mark.parametrize("schedule", ["one_step_off", "async"])
def test_a_pause_ends_no_flow(play: Play, schedule: str):
    """A time budget whose end would fall into a pause goes on after it."""
    training, _, ended = play(schedule, "wall_clock_s", 0.5, pause_s=0.6)
    assert ended is not None
    assert training.budget.spent >= 0.5
    assert len(training.rows) >= 2
