"""The asynchronous schedule: its bound, its queue, what becomes of stale groups, and what has gone
wrong in such trainers elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from baselines.asynchronous import Asynchronous
from baselines.sync import Sync
from harness.flow import Resumed
from tests.baselines.conftest import TASKS, World, closing_at_random, closing_in_order, settings


def trained(world: World) -> list[int]:
    return [int(n) for row in world.training.rows for n in row["groups"].split()]


@given(
    bound=st.integers(0, 4),
    queue=st.sampled_from(["fifo", "freshest"]),
    stale=st.sampled_from(["wait", "drop", "keep"]),
    groups_per_batch=st.integers(1, 3),
    room=st.sampled_from([1, 4, 10**6]),
    slow=st.frozensets(st.integers(0, 12), max_size=3),
    seed=st.integers(0, 2**20),
)
@hypothesis_settings(max_examples=150, deadline=None)
def test_the_bound_holds_whatever_closes_when(
    bound, queue, stale, groups_per_batch, room, slow, seed
):
    """Never more begun than the bound admits; every update whole; nothing trained on twice; with
    wait and drop nothing older than the bound, with wait and keep nothing discarded."""
    world = World(groups_per_batch=groups_per_batch)
    schedule = Asynchronous(settings(max_staleness=bound, queue=queue, stale_groups=stale))
    updates = 6
    run = world.run(schedule, updates, lambda w: closing_at_random(w, seed, slow), room)
    assert len(run.rows) == updates
    groups = trained(world)
    assert len(groups) == len(set(groups)) == updates * groups_per_batch
    ages = [row["staleness_max"] for row in run.rows]
    discarded = sum(run.recorder.discarded.get("stale", Counter()).values())
    if stale != "keep":
        assert max(ages) <= bound
    if stale != "drop":
        assert discarded == 0
    # What was begun while the engine had version v.
    for version in range(updates):
        begun = sum(v <= version for _, _, v in world.begun)
        assert begun <= (bound + version + 1) * groups_per_batch + discarded
    assert len(world.begun) <= updates * groups_per_batch + discarded


@given(
    queue=st.sampled_from(["fifo", "freshest"]),
    stale=st.sampled_from(["wait", "drop", "keep"]),
    seed=st.integers(0, 2**20),
)
@hypothesis_settings(max_examples=30, deadline=None)
def test_bound_0_is_the_synchronous_schedule(queue, stale, seed):
    """The same groups, the same backward passes in the same order (verl#6780)."""
    worlds = [World(groups_per_batch=3) for _ in range(2)]
    zero = Asynchronous(settings(max_staleness=0, queue=queue, stale_groups=stale))
    for world, schedule in zip(worlds, [zero, Sync(settings())], strict=True):
        world.run(schedule, 5, lambda w: closing_at_random(w, seed))
    asynchronous, synchronous = worlds
    assert asynchronous.accumulated == synchronous.accumulated
    assert asynchronous.begun == synchronous.begun
    assert [r["groups"] for r in asynchronous.training.rows] == [
        r["groups"] for r in synchronous.training.rows
    ]
    assert {row["staleness_max"] for row in asynchronous.training.rows} == {0}


def test_tasks_come_in_the_seed_s_order_whatever_closes_when():
    """prime-rl#1153."""
    orders = []
    for seed in range(3):
        world = World()
        schedule = Asynchronous(settings(max_staleness=2))
        world.run(schedule, 5, lambda w, seed=seed: closing_at_random(w, seed))
        orders.append([task for _, task, _ in world.begun])
    assert orders[0] == orders[1] == orders[2]
    synchronous = World()
    synchronous.run(Sync(settings()), 5, closing_in_order)
    assert orders[0] == [task for _, task, _ in synchronous.begun]


@given(
    bound=st.integers(1, 3),
    queue=st.sampled_from(["fifo", "freshest"]),
    stale=st.sampled_from(["wait", "drop", "keep"]),
    lost=st.frozensets(st.integers(0, 11), max_size=4),
    seed=st.integers(0, 2**20),
)
@hypothesis_settings(max_examples=40, deadline=None)
def test_a_run_that_goes_on_trains_on_nothing_from_its_future(bound, queue, stale, lost, seed):
    """Killed long after its checkpoint: all of its groups are there at once, but for some that had
    not ended. None is trained on before the version that made its tokens, none is older than the
    bound where none may be, and every update is made."""
    first = World()
    config = settings(max_staleness=bound, queue=queue, stale_groups=stale)
    first.run(Asynchronous(config), 6, lambda w: closing_at_random(w, seed))
    kept = {number: versions for number, versions in first.ended.items() if number not in lost}
    again = World(known=kept, resumed=Resumed(0, 0, 0, {}))
    run = again.run(Asynchronous(config), 6, lambda w: closing_at_random(w, seed + 1))
    assert len(run.rows) == 6
    for row in [] if lost else run.rows:
        newest = max(kept.get(int(number), (0, 0))[1] for number in row["groups"].split())
        assert newest < row["version"]  # which the step has made
        assert row["staleness_max"] <= bound or stale == "keep"


def test_one_straggler_holds_the_learner_only_when_it_would_be_too_old():
    """NeMo RL#3238. Group 0 ends when nothing else can: with a bound of 3 the first three updates
    go on without it, and the fourth, where its first tokens are 3 versions old, takes it."""
    world = World()
    schedule = Asynchronous(settings(max_staleness=3))
    run = world.run(schedule, 6, lambda w: closing_at_random(w, 1, frozenset({0})))
    (taken,) = [i for i, row in enumerate(run.rows) if "0" in row["groups"].split()]
    assert taken == 3
    assert run.rows[3]["staleness_max"] == 3
    assert len(run.rows) == 6


def test_a_broken_rollout_ends_the_run_at_once():
    """NeMo RL#3488: a trainer that waits for a dead collector."""
    world = World()

    async def breaking(world: World) -> None:
        while len(world.begun) < 6:
            await closing_once(world)
        next(iter(world.open.values()))[1].fail(KeyError("a defect"))
        await asyncio.sleep(1000)

    with pytest.raises(KeyError, match="a defect"):
        world.run(Asynchronous(settings(max_staleness=2)), 50, breaking)


async def closing_once(world: World) -> None:
    await asyncio.sleep(0)
    if len(world.open) > 1:
        world.close(next(iter(world.open)))


def test_dropped_groups_make_room_for_others():
    """SkyRL#1173: 125 of 128 in the buffer, and nobody may begin the last three."""
    world = World(groups_per_batch=4)
    schedule = Asynchronous(settings(max_staleness=1, stale_groups="drop"))
    slow = frozenset({1, 2, 5, 9})
    run = world.run(schedule, 8, lambda w: closing_at_random(w, 3, slow))
    dropped = run.recorder.discarded["stale"]
    assert sum(dropped.values()) > 0
    assert len(run.rows) == 8


def slow_tasks_trained(stale: str) -> tuple[int, Counter[str]]:
    """Of the tasks called hard, which all are slow, how many were trained on."""
    order = World()
    order.run(Sync(settings()), 12, closing_in_order)
    hard = {t.task_id for t in TASKS if t.difficulty == "hard"}
    slow = frozenset(number for number, task, _ in order.begun if task in hard)
    world = World()
    run = world.run(
        Asynchronous(settings(max_staleness=1, stale_groups=stale)), 10,
        lambda w: closing_at_random(w, 5, slow, patience=200),
    )  # fmt: skip
    tasks = {number: task for number, task, _ in world.begun}
    return (
        sum(tasks[number] in hard for number in trained(world)),
        run.recorder.discarded.get("stale", Counter()),
    )


def test_dropping_starves_slow_tasks_and_says_so_by_difficulty():
    """tinker-cookbook#822."""
    waited, none = slow_tasks_trained("wait")
    dropped, counts = slow_tasks_trained("drop")
    assert not none
    assert counts["hard"] > counts["easy"]
    assert dropped < waited


def test_rollouts_go_on_while_the_learner_works():
    """ROLL#394: an asynchronous trainer that runs serially."""

    async def slowly() -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    for bound, overlaps in ((2, True), (0, False)):
        world = World(pace=slowly)
        schedule = Asynchronous(settings(max_staleness=bound))
        world.run(schedule, 5, closing_in_order, room=4)
        assert bool(world.begun_while_learning) == overlaps


def test_a_lost_group_counts_as_one_of_its_update_and_adds_nothing():
    """Never a zero reward, and never a wait for what will not come (open-instruct#1887)."""
    world = World(groups_per_batch=3)

    async def losing(world: World) -> None:
        while True:
            await asyncio.sleep(0)
            if world.open:
                number = next(iter(world.open))
                world.close(number, dropped=number % 3 == 1)

    run = world.run(Asynchronous(settings(max_staleness=1)), 4, losing)
    assert [row["groups_dropped"] for row in run.rows] == [1] * 4
    assert [row["trajectories"] for row in run.rows] == [4] * 4
    learnt = {int(name.split("-")[0]) for names in world.accumulated for name in names}
    assert not any(number % 3 == 1 for number in learnt)


def test_freshest_takes_the_newest_first_and_fifo_what_finished_first():
    """At the second update groups 2 and 3 (begun at version 0), 6 and 7 (at version 1) are closed,
    4 and 5 (at version 0) are not. With `wait` two of version 0 are needed whatever the queue: the
    next update alone could not take all four that would be too old after it."""

    def second_update(queue: str, stale: str) -> list[int]:
        world = World()

        async def outside(world: World) -> None:
            for number in (0, 1):  # the first update's
                while number not in world.open:
                    await asyncio.sleep(0)
                world.close(number)
            while world.engine_version < 1:
                await asyncio.sleep(0)
            while len(world.begun) < 8:
                await asyncio.sleep(0)
            for number in (2, 3, 6, 7):  # 6 and 7 began at version 1
                world.close(number)
            await closing_in_order(world)

        schedule = Asynchronous(settings(max_staleness=2, queue=queue, stale_groups=stale))
        run = world.run(schedule, 4, outside)
        assert [v for n, _, v in world.begun if n in (2, 3, 6, 7)] == [0, 0, 1, 1]
        return [int(n) for n in run.rows[1]["groups"].split()]

    assert second_update("fifo", "keep") == [2, 3]
    assert second_update("freshest", "keep") == [6, 7]
    assert second_update("freshest", "wait") == [2, 3]


def test_staleness_is_token_weighted_from_version_spans():
    """By hand. Bound 1, one group per update, closed in order: group 1 begins at version 0, closes
    once the engine has version 1 and is trained on at version 1: of its 2 x 4 tokens half are of
    version 0 (age 1), half of version 1 (age 0)."""
    world = World(groups_per_batch=1)

    async def outside(world: World) -> None:
        world.close(0)
        while world.engine_version < 1:
            await asyncio.sleep(0)
        await closing_in_order(world)

    async def later(world: World) -> None:
        while 0 not in world.open:
            await asyncio.sleep(0)
        await outside(world)

    run = world.run(Asynchronous(settings(max_staleness=1)), 2, later)
    assert [row["staleness_mean"] for row in run.rows] == [0.0, 0.5]
    assert [row["staleness_max"] for row in run.rows] == [0, 1]
