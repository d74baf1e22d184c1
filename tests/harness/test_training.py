"""Task order, packing, budgets, the objective: what every schedule shares."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from typing import cast

import pytest

from harness.batch import LiveBatch
from harness.budget import Budget, BudgetEnded
from harness.clock import WallClock
from harness.config import BudgetConfig, ObjectiveConfig
from harness.objectives.estimators import AGGREGATIONS, ESTIMATORS
from harness.objectives.grpo import Grpo
from harness.packing import pack, task_order
from harness.protocols import (
    Group,
    GroupClosed,
    InfrastructureError,
    Interval,
    StepStats,
    Task,
    Trajectory,
    TrajectoryFinished,
    UsageError,
)
from harness.timeline import Timeline
from harness.training import Training

TASKS = [Task(f"t{i}", "train", "easy", {}) for i in range(10)]


def trajectory(name: str, tokens: int, actions: int = 1) -> Trajectory:
    mask = [0] * (tokens - actions) + [1] * actions
    return Trajectory(name, "t", "easy", 0, 0, 0, tokens_T=[5] * tokens, action_mask_T=mask)


def test_task_order_is_a_fresh_shuffle_per_epoch_and_a_function_of_the_seed():
    first = [t.task_id for t in itertools.islice(task_order(TASKS, 3), 30)]
    assert first == [t.task_id for t in itertools.islice(task_order(TASKS, 3), 30)]
    epochs = [first[:10], first[10:20], first[20:]]
    assert all(sorted(e) == sorted(t.task_id for t in TASKS) for e in epochs)
    assert epochs[0] != epochs[1]
    assert first != [t.task_id for t in itertools.islice(task_order(TASKS, 4), 30)]


def test_chunks_are_sorted_bounded_and_complete():
    trajectories = [trajectory(f"x{i}", n) for i, n in enumerate([90, 10, 50, 40, 200, 11])]
    chunks = pack(trajectories, chunk_tokens=100)
    assert [[len(t.tokens_T) for t in c] for c in chunks] == [[10, 11], [40, 50], [90], [200]]
    assert sorted(t.trajectory_id for c in chunks for t in c) == [f"x{i}" for i in range(6)]
    assert pack([], 100) == []


# Of 1, 0, 0, 0: mean 1/4; squared deviations 9/16 + 3/16 = 3/4. Of the others of a 0: 1, 0, 0, mean
# 1/3, population std sqrt(2)/3; the others of the 1 are all equal, so the group's own std is taken.
BY_HAND = {
    "mean_std_population": [0.75 / (math.sqrt(3) / 4 + 1e-6)]
    + 3 * [-0.25 / (math.sqrt(3) / 4 + 1e-6)],
    "mean_std_sample": [0.75 / (0.5 + 1e-6)] + 3 * [-0.25 / (0.5 + 1e-6)],
    "mean": [0.75, -0.25, -0.25, -0.25],
    "leave_one_out": [1.0, -1 / 3, -1 / 3, -1 / 3],
    "leave_one_out_std": [1 / (math.sqrt(3) / 4 + 1e-6)] + 3 * [-1 / 3 / (math.sqrt(2) / 3 + 1e-6)],
    "batch_std": [0.75, -0.25, -0.25, -0.25],
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_advantages_by_hand(estimator):
    objective = Grpo(ObjectiveConfig(estimator=estimator), group_size=4)
    expected = pytest.approx(BY_HAND[estimator], rel=1e-12)
    assert objective.advantages([1.0, 0.0, 0.0, 0.0]) == expected


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("rewards", [[1.0, 0.0, 0.0, 1.0, 1.0], [0.1, 0.7, 0.1, 0.3, 0.7, 0.1]])
def test_equal_rewards_get_equal_advantages_to_the_bit(estimator, rewards):
    """What the bucket form of the ledger rests on."""
    values = Grpo(ObjectiveConfig(estimator=estimator), 5).advantages(rewards)
    assert len(set(zip(rewards, values, strict=True))) == len(set(rewards))


def test_normalisers_by_hand():
    groups = [
        Group(0, "t", "easy", [trajectory("a", 9, 4), trajectory("b", 9, 2)]),
        Group(1, "t", "easy", [trajectory("c", 9, 3), trajectory("d", 9, 1)]),
        Group(2, "t", "easy", dropped=True),
    ]
    for group in groups:
        for i, t in enumerate(group.trajectories):
            t.reward = float(i * (group.group + 1))  # 0, 1 and 0, 2: centred -0.5, 0.5, -1, 1
    got = {
        name: Grpo(ObjectiveConfig(aggregation=name, constant_tokens=100), 2).normaliser(groups)
        for name in AGGREGATIONS
    }
    assert got == {
        "token_mean": 10.0, "seq_mean_token_mean": 4.0, "seq_mean_token_sum": 4.0,
        "constant": 400.0,
    }  # fmt: skip
    scaled = Grpo(ObjectiveConfig(estimator="batch_std"), 2).normaliser(groups)
    assert scaled == pytest.approx(10 * (math.sqrt(2.5 / 4) + 1e-6), rel=1e-12)
    assert [a.weight(4) for a in AGGREGATIONS.values()] == [1.0, 0.25, 1.0, 1.0]


@pytest.mark.parametrize("rewards", [[0.1] * 7, [1.0], []])
def test_degenerate_groups_have_exactly_no_advantage(rewards):
    """Seven times 0.1 has a standard deviation of rounding errors; max == min decides."""
    assert Grpo(ObjectiveConfig(), 8).advantages(rewards) == [0.0] * len(rewards)


def test_what_has_no_advantage_is_refused():
    with pytest.raises(UsageError, match=r"rollout\.group_size=1"):
        Grpo(ObjectiveConfig(), group_size=1)
    with pytest.raises(UsageError, match=r"estimator=leave_one_out_std needs groups of 3"):
        Grpo(ObjectiveConfig(estimator="leave_one_out_std"), group_size=2)
    with pytest.raises(UsageError, match=r"objective\.estimator=median"):
        Grpo(ObjectiveConfig(estimator="median"), group_size=2)
    with pytest.raises(ValueError, match="non-finite"):
        Grpo(ObjectiveConfig(), 2).advantages([0.0, math.nan])


def test_the_normaliser_counts_action_tokens_of_all_survivors():
    objective = Grpo(ObjectiveConfig(), 2)
    group = Group(0, "t", "easy", [trajectory("a", 9, 4), trajectory("b", 5, 0)])
    assert objective.normaliser([group]) == 4.0
    assert objective.normaliser([Group(0, "t", "easy", dropped=True)]) == 1.0


def test_budgets_count_their_own_unit():
    class Still(WallClock):
        at_s = 0.0

        def now(self) -> float:
            return self.at_s

    clock = Still()
    spent = {}
    for kind in ("updates", "trajectories", "tokens", "wall_clock_s", "device_s"):
        clock.at_s = 100.0
        budget = Budget(BudgetConfig(kind, 30), devices=2, clock=clock)
        assert budget.spent == 0
        budget.start()
        budget.counters.updates, budget.counters.trajectories, budget.counters.tokens = 2, 30, 29
        clock.at_s = 112.0
        spent[kind] = (budget.spent, budget.exhausted, budget.remaining_s)
        clock.at_s = 115.0
        budget.end()
        clock.at_s = 999.0
        assert budget.elapsed_s == 15.0
    assert spent == {
        "updates": (2, False, None),
        "trajectories": (30, True, None),
        "tokens": (29, False, None),
        "wall_clock_s": (12.0, False, 18.0),
        "device_s": (24.0, False, 3.0),
    }


def test_a_batch_hands_over_events_in_order_and_ends_once():
    async def body() -> None:
        clock = WallClock()
        group = Group(0, "t", "easy")
        batch = LiveBatch(0, 0, [group], clock)
        finished = TrajectoryFinished(trajectory("a", 3))
        batch.emit(finished)
        assert batch.ready() == [finished]
        assert batch.ready() == []
        closed = GroupClosed(group)
        batch.emit(finished)
        batch.emit(closed)
        assert await batch.next() is finished
        assert batch.ready() == [closed]
        assert batch.ready() == []
        assert await batch.next() is None
        assert await batch.next() is None

    asyncio.run(body())


def test_a_spent_time_budget_reaches_a_waiting_schedule():
    async def body() -> None:
        batch = LiveBatch(0, 0, [Group(0, "t", "easy")], WallClock())
        waiting = asyncio.create_task(batch.next())
        await asyncio.sleep(0)
        batch.fail(BudgetEnded("spent"))
        with pytest.raises(BudgetEnded):
            await waiting
        with pytest.raises(BudgetEnded):
            batch.ready()

    asyncio.run(body())


class Quiet:
    """An engine and a learner without work: what the end of an update needs of them."""

    def __init__(self) -> None:
        self.published = 0

    async def step(self, normaliser: float) -> StepStats:
        return STATS

    async def publish(self) -> tuple[str, int]:
        self.published += 1
        return "weights", self.published

    async def update_weights(self, path: str, version: int, in_flight: bool) -> None:
        assert (path, version) == ("weights", self.published)

    async def drain_intervals(self) -> list[Interval]:
        return [Interval("learner/0", "step", 0.0, 1.0)]


def training(clock: WallClock, budget: BudgetConfig, parts: Quiet) -> Training:
    return Training(
        learner=parts,  # pyright: ignore[reportArgumentType]
        engine=parts,  # pyright: ignore[reportArgumentType]
        objective=Grpo(ObjectiveConfig(), 2),
        budget=Budget(budget, devices=1, clock=clock),
        clock=clock,
        timeline=Timeline(0.0),
        begin=lambda number, task, seed, sink: Group(number, "t", "easy"),
        take_intervals=list,
        tasks=TASKS,
        groups_per_batch=1,
        chunk_tokens=100,
        seed=0,
        on_update=lambda row: None,
        on_trajectory=lambda trajectory, batch: None,
    )


STATS = StepStats(1, 0.5, False, 1e-3, 0, 0)


def test_an_update_that_ends_after_the_time_budget_is_discarded_by_every_schedule():
    """Sync's backwards come after its last wait: only the end of the update can stop it."""

    async def body() -> None:
        parts = Quiet()
        run = training(WallClock(), BudgetConfig("wall_clock_s", 0.05), parts)
        batch = await anext(run.batches())
        await asyncio.sleep(0.1)
        stats = await run.step(batch)
        with pytest.raises(BudgetEnded):
            await run.finish_update(batch, stats)
        assert (parts.published, run.rows, run.budget.counters.updates) == (0, [], 0)

    asyncio.run(body())


def test_a_batch_that_lost_everything_is_no_update():
    async def body() -> None:
        parts = Quiet()
        run = training(WallClock(), BudgetConfig("updates", 5), parts)
        batch = await anext(run.batches())
        await run.finish_update(batch, STATS)
        assert run.budget.counters.updates == 1
        for group in batch.groups:
            group.dropped = True
        with pytest.raises(InfrastructureError, match="every group of batch 0"):
            await run.finish_update(batch, STATS)
        assert run.budget.counters.updates == 1

    asyncio.run(body())


def test_the_time_of_a_decision_is_the_update_s_and_not_the_next_one_s():
    async def body() -> None:
        run = training(WallClock(), BudgetConfig("updates", 5), Quiet())
        rows: list[dict[str, object]] = run.rows
        batches = run.batches()
        for decides in (True, False):
            batch = await anext(batches)
            if decides:
                time.sleep(0.05)  # a choice is computed, it does not wait
                run.decided("group", "because")
            await run.finish_update(batch, STATS)
        decided, undecided = rows
        assert 0.05 <= cast(float, decided["decide_s"]) <= cast(float, decided["per_update_s"])
        assert undecided["decide_s"] is None

    asyncio.run(body())
