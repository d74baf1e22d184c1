"""`release=auto`: every rung played in imagination, and the choice between them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.sync import Sync
from harness.config import Config
from harness.learner.torch_learner import TorchLearner
from harness.overlap import overlap
from harness.parts import learner_options
from harness.protocols import (
    Group,
    Interval,
    Release,
    RewardArrived,
    Trajectory,
    TrajectoryFinished,
)
from harness.timings import Costs, History, PassCost, UpdateTimings
from thundersync.check import relative_error
from thundersync.hand import Hand
from thundersync.recorded import InlineLearner, RecordedBatch, RecordedRun, play
from thundersync.release import LADDER, START, Prediction, buffers_per_group, choose, predict
from thundersync.stream import Stream
from thundersync.synthetic import arrival, synthetic_groups

LENGTH = 100
MB = 1_000_000
LINEAR = PassCost(0.0, 0.01)


def config(release: str = "auto", group_size: int = 4) -> Config:
    made = Config()
    made.schedule.release = release
    made.schedule.chunk_tokens = 4 * LENGTH
    made.schedule.learning_rate = 0.0
    made.rollout.group_size = group_size
    return made


def run_of(*updates: UpdateTimings, group_size: int = 4) -> RecordedRun:
    """The real objective and packing, with a history and without a learner."""
    run = RecordedRun(cast(Any, None), config(group_size=group_size), [])
    for update in updates:
        run.timings.add(update)
    return run


def update_of(
    arrivals: Sequence[Sequence[tuple[float, float, float]]],
    cost: PassCost = LINEAR,
    free: int | None = None,
) -> UpdateTimings:
    """Groups of (submitted, rewarded, reward) from second 50 of the run on; two measured passes
    that follow `cost`, and buffers of 1 MB."""
    groups = [
        Group(
            g, "t", "easy",
            [
                Trajectory(
                    f"{g}-{i}", "t", "easy", g, i, 0, tokens_T=[1] * LENGTH, reward=reward,
                    end="submit", finished_s=50 + submitted, reward_s=50 + rewarded,
                )
                for i, (submitted, rewarded, reward) in enumerate(members)
            ],
        )
        for g, members in enumerate(arrivals)
    ]  # fmt: skip
    passes = [
        Interval("learner/0", "accumulate", 0, cost.seconds(n), {"trajectories": [], "padded": n})
        for n in (100, 300)
    ]
    last = max(t.reward_s for g in groups for t in g.trajectories)
    return UpdateTimings(groups, 50.0, last, 0.0, passes, "group", MB, free)


def predictions(update: UpdateTimings, costs: Costs) -> dict[Release, Prediction]:
    stream, run = Stream(config()), cast(Any, run_of())
    return {r: predict(stream.play, run, update, r, costs) for r in LADDER}


def test_predictions_by_hand():
    """Two groups of two; a pass costs 1 s and 0.01 s a token, a fold 0.25 s."""
    update = update_of([[(1, 2, 0), (8, 10, 1)], [(2, 4, 1), (7, 9, 1)]])
    cost = PassCost(1.0, 0.01)
    found = predictions(update, Costs(cost, cost, fold_s=0.25))
    # batch: at 10 the two of group 0 in one pass of 200 tokens.
    assert found["batch"] == Prediction(10 + 3, 0, 0)
    assert found["group"] == Prediction(10 + 3, 0, 0)  # group 1 closes first and has no signal
    # reward: 0-0 at 2 to 4, 1-0 at 4 to 6 (in vain), at 10 a fold, and 0-1 with its final
    # advantage.
    assert found["reward"] == Prediction(10 + 0.25 + 2, 2, 2)
    # submit: 0-0 at 1 to 3, 1-0 at 3 to 5 and 1-1 at 7 to 9 (in vain), 0-1 at 9 to 11.
    assert found["submit"] == Prediction(11 + 0.25, 3, 4)


arrivals_of = st.lists(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 30)), min_size=4, max_size=4),
    min_size=1, max_size=4,
)  # fmt: skip


@settings(deadline=None)
@given(arrivals_of)
def test_without_overheads_every_rung_attains_its_bound(drawn):
    """Equal lengths, no cost per pass, a signal in every group: nothing separates the schedule from
    T*, which is computed apart from it (harness/overlap.py)."""
    update = update_of(
        [
            [(submitted, submitted + late, i % 2) for i, (submitted, late) in enumerate(members)]
            for members in drawn
        ]
    )
    cost_s = {t.trajectory_id: 2.0 for t in update.trajectories}
    cost = PassCost(0.0, 2.0 / LENGTH)
    for release, found in predictions(update, Costs(cost, cost, 0.0)).items():
        bound = overlap(replace(update, release=release), cost_s, 0.0)
        assert bound is not None
        assert found.end_s == pytest.approx(bound.t_star_s)


def chosen(*updates: UpdateTimings, buffers: int = 2) -> tuple[Release, str]:
    choice = choose(Stream(config()).play, cast(Any, run_of(*updates)), buffers)
    return choice.release, choice.why


MIXED = (0, 1, 0, 1)


def spread(
    verify_s: float, rewards: Sequence[float] = MIXED, groups: int = 3, every_s: float = 1.0
) -> list[list[Any]]:
    """Trajectories that finish one after the other, the groups interleaved."""
    times = [[1 + every_s * (g + groups * i) for i in range(len(rewards))] for g in range(groups)]
    return [[(t, t + verify_s, r) for t, r in zip(ts, rewards, strict=True)] for ts in times]


def test_the_first_update_takes_the_rung_that_holds_nothing_and_says_so():
    release, why = chosen()
    assert release == START == "group"
    assert "to start with" in why
    unlearnt = replace(update_of(spread(1), PassCost(1, 1)), intervals=[])
    assert chosen(unlearnt)[0] == START


def test_long_verification_is_overlapped_by_submit():
    release, why = chosen(update_of(spread(verify_s=20)))
    assert release == "submit"
    assert "verification 20.00 s" in why


def test_short_verification_takes_no_more_than_reward():
    assert chosen(update_of(spread(verify_s=0)))[0] == "reward"


def test_groups_that_arrive_together_are_worth_no_ledger():
    together = [[(5 * g + 5, 5 * g + 5, r) for r in MIXED] for g in range(3)]
    release, why = chosen(update_of(together, PassCost(0.3, 0.001)))
    assert release == "group"
    assert "arrival correlation 1.00" in why


def test_overhead_per_pass_speaks_against_single_trajectories():
    dear, cheap = PassCost(1.5, 0.001), PassCost(0.0, 0.016)  # 1.6 s a trajectory, either way
    quick = spread(verify_s=3, every_s=0.1)
    assert chosen(update_of(quick, dear))[0] == "group"
    assert chosen(update_of(quick, cheap))[0] == "submit"


def test_groups_without_a_signal_waste_captures():
    silent = update_of(
        [
            *spread(0, rewards=(1, 1, 1, 1), groups=3),
            [(5, 5, r) for r in MIXED],
            [(13.5, 13.5, r) for r in MIXED],
        ],
        PassCost(0.0, 0.02),
    )
    release, why = chosen(silent)
    assert release == "group"
    assert "60% of groups without a signal" in why


def test_a_tie_goes_to_what_holds_less():
    assert chosen(update_of(spread(0), PassCost(0.0, 1e-6)))[0] == "batch"


def test_what_does_not_fit_into_memory_is_not_taken():
    def within(megabytes: int, buffers: int = 2) -> tuple[Release, str]:
        update = update_of(spread(20), free=megabytes * MB)
        return chosen(update, buffers=buffers)

    # Twelve captures wait for their verdict: 12 MB, and half of what is free may be taken.
    assert within(24)[0] == "submit"
    release, why = within(23)
    assert release == "reward"
    assert why.endswith("does not fit: submit")
    release, why = within(1)
    assert release in ("batch", "group")
    assert why.endswith("does not fit: reward, submit")


def test_the_figures_behind_a_choice_are_written_down():
    _, why = chosen(update_of(spread(20), PassCost(0.25, 0.01), free=100 * MB))
    for figure in (
        "batch 44.75", "group ", "reward ", "submit ", "250.0 ms + 10000 us a token",
        "0% of groups without a signal", "0.00 s of captures wasted",
        "ledgers up to 12 MB of 100 MB free",
    ):  # fmt: skip
        assert figure in why
    assert "\n" not in why


def test_a_schedule_that_waits_for_something_else_is_found_out():
    async def play(run: Any, batch: Any, release: Release) -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="awaits something else"):
        cost = PassCost(0, 1)
        update = update_of(spread(0), cost)
        predict(play, cast(Any, run_of()), update, "batch", Costs(cost, cost, 0))


def test_a_groups_buffers_depend_on_form_and_estimator():
    made = config(group_size=8)
    assert buffers_per_group(made) == 2
    made.ledger.form = "bucket"
    assert buffers_per_group(made) == 8
    made.ledger.form, made.objective.estimator = "auto", "leave_one_out_std"
    assert buffers_per_group(made) == 8


def test_a_certain_signal_is_captured_before_a_doubtful_one():
    """Group 1 has two different rewards; group 0 two equal ones, group 2 none yet."""
    hand = Hand("submit")
    made = {
        (g, i): Trajectory(f"{g}-{i}", "t", "easy", g, i, 0, tokens_T=[1])
        for g, i in itertools.product(range(3), range(4))
    }
    for place in itertools.product((0, 2, 1), range(4)):
        hand.take(TrajectoryFinished(made[place]))
    for (g, i), reward in {(0, 0): 1.0, (0, 1): 1.0, (1, 0): 1.0, (1, 3): 0.0, (1, 2): 0.0}.items():
        made[g, i].reward = reward
        hand.take(RewardArrived(made[g, i]))
    order = [t.trajectory_id for t in hand.candidates]
    # In group 1 the two of one reward share a pass; the one without a reward comes last.
    assert order[:4] == ["1-2", "1-3", "1-0", "1-1"]
    assert order[4:] == ["2-0", "2-1", "2-2", "2-3", "0-0", "0-1", "0-2", "0-3"]


class Planned(History):
    """Real arrivals, costs that somebody else's machine might have."""

    plan = ((2.0, 0.0), (0.0, 0.0001), (0.0, 1e-9))

    def costs(self) -> Costs | None:
        if not self.updates:
            return None
        cost = PassCost(*self.plan[len(self.updates) % len(self.plan)])
        return Costs(cost, cost, 0.0)


def test_auto_gives_the_synchronous_update_whatever_it_chooses(qwen3, tmp_path):
    groups = synthetic_groups(1, 128, (0.0, 1.0), 3, 4)
    made = config()

    def batch() -> RecordedBatch:
        return RecordedBatch(groups, arrival(groups, 3), burst=2, reward_delay=3)

    def learner() -> TorchLearner:
        return TorchLearner(**learner_options(made, qwen3, tmp_path))

    reference = play(Sync(made), learner(), made, [batch()]).directions[0]
    inline = InlineLearner(learner())
    run = RecordedRun(inline, made, [batch() for _ in range(4)])
    run.timings = Planned()
    asyncio.run(Stream(made).run(run))
    rungs = [release for release, _ in run.decisions]
    assert rungs[0] == "group"
    assert len(set(rungs)) == 3, rungs
    for direction in inline.directions:
        assert relative_error(direction, reference) < 1e-5
