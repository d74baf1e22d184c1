"""The rungs of the ladder in virtual time: by hand on a toy, on any batch against their bounds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baselines.sync import Sync
from harness import lengths
from harness.budget import Budget
from harness.config import BudgetConfig, Config, ObjectiveConfig
from harness.engines.simulated import SimulatedEngine
from harness.learner.simulated import SimulatedLearner
from harness.objectives.grpo import Grpo
from harness.overlap import Job, earliest_end
from harness.protocols import (
    Group,
    GroupClosed,
    RewardArrived,
    Sink,
    Task,
    Trajectory,
    TrajectoryFinished,
    Turn,
    TurnGenerated,
)
from harness.timeline import Timeline
from harness.training import Training
from harness.virtual import VirtualClock
from thundersync.stream import Stream

RUNGS = ("group", "reward", "submit")


class Life(NamedTuple):
    """Its last token is there at `finished`, its reward `verify` later; seconds. A token of it
    takes the learner a second. Its `turns` are of equal length, in tokens and in seconds."""

    finished: int
    verify: int
    reward: float
    tokens: int = 10
    turns: int = 1

    def after(self, turn: int) -> tuple[float, int]:
        """When it is over, and how many tokens are there then."""
        return self.finished * (turn + 1) / self.turns, self.tokens * (turn + 1) // self.turns


class World:
    """One batch of planned lives under the real Training."""

    def __init__(self, costs: Any, groups: Sequence[Sequence[Life]], ranks: int = 1) -> None:
        self.clock = clock = VirtualClock()
        self.groups = groups
        self.rows: list[dict[str, Any]] = []
        learner = SimulatedLearner(
            costs, clock, ranks=ranks, chunk_tokens=1, learning_rate=0.0, form="auto", bucket_cap=8
        )
        size = len(groups[0])
        self.training = Training(
            learner=learner,
            engine=SimulatedEngine(costs, clock, replicas=1, slots=1),
            objective=Grpo(ObjectiveConfig(), size),
            budget=Budget(BudgetConfig("updates", 1), devices=1, clock=clock),
            clock=clock,
            timeline=Timeline(0.0, clock.now),
            begin=self.begin,
            take_intervals=list,
            tasks=[Task(f"t{n}", "train", "easy", {}) for n in range(len(groups))],
            groups_per_batch=len(groups),
            chunk_tokens=1,
            seed=0,
            ranks=ranks,
            group_size=size,
            on_update=self.rows.append,
            on_trajectory=lambda trajectory, batch: None,
        )

    def begin(self, number: int, task: Task, seed: int, sink: Sink) -> Group:
        group = Group(number, task.task_id, "easy")
        self.clock.spawn(self.live(group, sink), f"group-{number}")
        return group

    async def live(self, group: Group, sink: Sink) -> None:
        async def one(index: int, life: Life) -> Trajectory:
            t = Trajectory(f"{group.group}-{index}", "t", "easy", group.group, index, 0)
            t.end = "submit"
            for n in range(life.turns):
                until_s, tokens = life.after(n)
                await self.clock.sleep(until_s - self.clock.now())
                before = len(t.tokens_T)
                lengths.extend(t, tokens - before, generated=True)
                t.turns.append(Turn(before, tokens, 0.0, self.clock.now()))
                if life.turns > 1:
                    sink.emit(TurnGenerated(t, n))
            t.finished_s = self.clock.now()
            sink.emit(TrajectoryFinished(t))
            await self.clock.sleep(life.verify)
            t.reward, t.reward_s = life.reward, self.clock.now()
            sink.emit(RewardArrived(t))
            return t

        lives = enumerate(self.groups[group.group])
        running = [self.clock.spawn(one(i, life), f"{group.group}-{i}") for i, life in lives]
        group.trajectories = [await life for life in running]
        sink.emit(GroupClosed(group))

    def play(self, release: str) -> dict[str, Any]:
        """The update's row."""
        config = Config()
        config.schedule.release = release
        self.training.release = release  # pyright: ignore[reportAttributeAccessIssue]
        schedule = Sync(config) if release == "batch" else Stream(config)
        self.clock.run(schedule.run(self.training))
        (row,) = self.rows
        return row


TOY = (
    (Life(10, 20, 1.0), Life(20, 5, 0.0)),
    (Life(12, 38, 1.0), Life(40, 20, 0.0)),
)


@pytest.mark.parametrize(
    ("release", "end_s"),
    [
        ("batch", 100),  # all four passes after the last reward, at 60
        ("group", 80),  # the first group's two from 30 on, the second's from 60 on
        ("reward", 70),  # from 25, 35 (it was ready at 30), 50 and 60 on
        ("submit", 60),  # from 10, 20, 30 and 40 on; the last reward is what it waits for
    ],
)
def test_the_rungs_end_when_the_theory_says(toy: Any, release: str, end_s: float) -> None:
    row = World(toy(), TOY).play(release)
    assert row["t_s"] == pytest.approx(end_s)
    assert row["t_star_s"] == pytest.approx(end_s)  # one learner, no overheads: attained
    assert row["t_sync_s"] == pytest.approx(100)


def test_what_streaming_adds_can_cost_more_than_it_saves(toy: Any) -> None:
    """Ten seconds more for each capture: `reward` works from 25 to 45; a's group has closed then,
    so that a is added until 55 without a capture; c is captured until 75 and d added until 85."""
    assert World(toy(overhead=10), TOY).play("group")["t_s"] == pytest.approx(80)
    assert World(toy(overhead=10), TOY).play("reward")["t_s"] == pytest.approx(85)


LIVES = st.builds(
    Life, st.integers(0, 60), st.integers(0, 40), st.sampled_from([0.0, 1.0]), st.integers(1, 30),
    st.just(1),
)  # fmt: skip
BATCHES = st.integers(2, 4).flatmap(
    lambda size: st.lists(st.lists(LIVES, min_size=size, max_size=size), min_size=1, max_size=4)
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batch=BATCHES, ranks=st.integers(1, 3))
def test_no_rung_beats_its_bound_or_the_work(toy: Any, batch: list[list[Life]], ranks: int) -> None:
    """math.md section 3. The work is what the update trains on: groups of equal rewards add
    nothing."""
    trained = [g for g in batch if len({life.reward for life in g}) > 1]
    work = sum(life.tokens for g in trained for life in g)
    last = max(life.finished + life.verify for g in batch for life in g)
    known = {
        "batch": lambda g, life: last,
        "group": lambda g, life: max(x.finished + x.verify for x in g),
        "reward": lambda g, life: life.finished + life.verify,
        "submit": lambda g, life: life.finished,
    }
    for release, ready in known.items():
        jobs = [Job(last, 0.0)] + [Job(ready(g, x), x.tokens) for g in trained for x in g]
        end_s = World(toy(), batch, ranks).play(release)["t_s"]
        assert end_s >= earliest_end(jobs, ranks) - 1e-6
        assert end_s >= work / ranks - 1e-6
        if ranks == 1 and (release in ("batch", "group") or trained == batch):
            assert end_s == pytest.approx(earliest_end(jobs))  # attained


TURNS = st.builds(Life._replace, LIVES, turns=st.integers(2, 5), tokens=st.integers(5, 30))
TURN_BATCHES = st.integers(2, 3).flatmap(
    lambda size: st.lists(st.lists(TURNS, min_size=size, max_size=size), min_size=1, max_size=4)
)


@pytest.mark.parametrize("ranks", [1, 2])
def test_turns_leave_the_backward_passes_for_the_end(toy: Any, ranks: int) -> None:
    """Two trajectories of 40 tokens end at 40; of a token's second a quarter is the forward pass.
    Three turns were passed forward by then, at 10, 20 and 30, each trajectory's on a rank of its
    own where there are two: 10 are left of it, and of all tokens three quarters of a second."""
    lives = (Life(40, 0, 1.0, 40, 4), Life(40, 0, 0.0, 40, 4))
    row = World(toy(), [lives], ranks).play("turn")
    left_s = 10 + 30 * 3 / 4
    assert row["t_s"] == pytest.approx(40 + left_s * 2 / ranks)
    assert row["turns_trajectories"] == 2
    submit = World(toy(), [lives], ranks).play("submit")
    assert submit["t_s"] == pytest.approx(40 + 40 * 2 / ranks)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batch=TURN_BATCHES, ranks=st.integers(1, 3), chunk=st.sampled_from([0.0, 2.0]))
def test_turns_beat_neither_their_bound_nor_the_work(
    toy: Any, batch: list[list[Life]], ranks: int, chunk: float
) -> None:
    """The forward part of a turn, a quarter of its seconds, may be done once its tokens are there,
    the rest when the trajectory has ended."""
    trained = [life for g in batch if len({x.reward for x in g}) > 1 for life in g]
    last = max(life.finished + life.verify for g in batch for life in g)
    jobs = [Job(last, 0.0)]
    for life in trained:
        ends = [(0.0, 0), *(life.after(n) for n in range(life.turns))]
        jobs += [Job(s, 0.25 * (n - m)) for (_, m), (s, n) in itertools.pairwise(ends)]
        jobs.append(Job(life.finished, 0.75 * life.tokens + chunk))
    row = World(toy(chunk=chunk), batch, ranks).play("turn")
    assert row["t_s"] >= row["t_star_s"] - 1e-6
    assert row["t_s"] >= sum(life.tokens for life in trained) / ranks - 1e-6
    assert row["t_s"] >= earliest_end(jobs, ranks) - 1e-6


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), max_size=12), st.integers(2, 4))
def test_the_bound_of_several_learners_is_the_sum_of_what_is_left(
    pairs: list[tuple[int, int]], learners: int
) -> None:
    """The sweep over releases against the formula as it is written."""
    jobs = [Job(r / 7, c / 3) for r, c in pairs]

    def bound(t: float) -> float:
        left = (max(0.0, j.cost_s - max(0.0, t - j.release_s)) for j in jobs)
        return t + sum(left) / learners

    plain = max([*(j.release_s + j.cost_s for j in jobs), *(bound(j.release_s) for j in jobs), 0.0])
    assert earliest_end(jobs, learners) == pytest.approx(plain)
