"""The lower bound T*, T_sync and the efficiency between them, against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.overlap import Job, Overlap, earliest_end, overlap, overlap_row, run_efficiency
from harness.protocols import Group, Interval, Release, Trajectory
from harness.timings import Costs, History, PassCost, UpdateTimings, fit, packed_s

LADDER: tuple[Release, ...] = ("batch", "group", "reward", "submit")
# Whole numbers: every sum is exact.
jobs_of = st.lists(st.builds(Job, st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=5)


def end_of(order: Sequence[Job]) -> float:
    """When one learner is done that takes the jobs in this order."""
    now = 0.0
    for job in order:
        now = max(now, job.release_s) + job.cost_s
    return now


@given(jobs_of)
def test_release_order_attains_the_bound_on_one_learner_and_nothing_beats_it(jobs):
    in_release_order = sorted(jobs, key=lambda job: job.release_s)
    assert end_of(in_release_order) == earliest_end(jobs)
    assert min(map(end_of, itertools.permutations(jobs))) == earliest_end(jobs)


@given(jobs_of, st.integers(2, 3))
def test_no_learners_beat_their_bound(jobs, learners):
    optimum = min(
        max(
            earliest_end([job for job, at in zip(jobs, places, strict=True) if at == learner])
            for learner in range(learners)
        )
        for places in itertools.product(range(learners), repeat=len(jobs))
    )
    assert earliest_end(jobs, learners) <= optimum + 1e-9
    assert earliest_end(jobs, learners) <= earliest_end(jobs)


def test_bounds_by_hand():
    jobs = [Job(0, 4), Job(1, 4), Job(9, 2)]
    assert earliest_end(jobs) == 11  # the last arrival
    assert earliest_end([*jobs, Job(9, 3)]) == 14  # two that arrive together
    assert earliest_end([Job(0, 4), Job(1, 4)], learners=2) == 5  # 1 + 4 alone
    # Six seconds of work at 2 for three learners are two each; alone every job takes one.
    assert earliest_end([Job(2, 1)] * 6, learners=3) == 4
    # At 3 a job of 5 that began at 0 has 2 left, whoever did it: 3 + (2 + 2 + 2) / 2.
    assert earliest_end([Job(0, 5), Job(3, 2), Job(3, 2)], learners=2) == 6
    assert earliest_end([]) == earliest_end([], learners=4) == 0


def trajectory(group: int, index: int, submitted: float, rewarded: float) -> Trajectory:
    return Trajectory(
        f"{group}-{index}", "t", "easy", group, index, 0, tokens_T=[1] * 10, reward=1.0,
        end="submit", finished_s=submitted, reward_s=rewarded,
    )  # fmt: skip


def update_of(groups: Sequence[Group], **changes) -> UpdateTimings:
    """A batch that began at second 100 of the run."""
    last = max(t.reward_s for g in groups for t in g.trajectories)
    made = UpdateTimings(groups, 100.0, last, 0.0, [Interval("learner/0", "step", 0, 0)], "reward")
    return replace(made, **changes)


@st.composite
def updates(draw) -> UpdateTimings:
    groups = []
    for g in range(draw(st.integers(1, 4))):
        group = Group(g, "t", "easy")
        for i in range(draw(st.integers(2, 4))):
            submitted = 100 + draw(st.integers(1, 40))
            rewarded = submitted + draw(st.integers(0, 20))
            group.trajectories.append(trajectory(g, i, submitted, rewarded))
        groups.append(group)
    return update_of(groups)


@given(updates(), st.sets(st.integers(0, 3)), st.integers(0, 8), st.integers(1, 3))
def test_the_ideal_schedule_has_efficiency_1_and_the_synchronous_one_0(
    update, silent, cost, learners
):
    update = replace(
        update, intervals=[Interval(f"learner/{r}", "step", 0, 0) for r in range(learners)]
    )
    cost_s = {
        t.trajectory_id: float(cost)
        for g in update.groups
        for t in g.trajectories
        if g.group not in silent
    }
    ends = []
    for release in LADDER:
        found = overlap(replace(update, release=release), cost_s, fold_s=0.0)
        assert found is not None
        ends.append(found.t_star_s)
        last_s = update.last_event_s - update.started_s
        assert last_s <= found.t_star_s <= found.t_sync_s + cost  # whole trajectories: one more
        assert found.t_sync_s == pytest.approx(last_s + sum(cost_s.values()) / learners)
        ideal = replace(found, t_s=found.t_star_s).efficiency
        if found.t_sync_s - found.t_star_s < 0.05 * found.t_sync_s:
            assert ideal is None
        else:
            assert ideal == pytest.approx(1.0)
            assert replace(found, t_s=found.t_sync_s).efficiency == 0.0
    assert ends == sorted(ends, reverse=True)  # a higher rung never allows less


def test_an_update_by_hand():
    """Group 0 arrives at 2 and 10, group 1 (no gradient) at 4 and 12; a verifier takes 3 s."""
    groups = [
        Group(0, "t", "easy", [trajectory(0, 0, 101, 102), trajectory(0, 1, 107, 110)]),
        Group(1, "t", "easy", [trajectory(1, 0, 101, 104), trajectory(1, 1, 109, 112)]),
    ]
    update, cost_s = update_of(groups, step_s=13.0), {"0-0": 3.0, "0-1": 3.0}
    found = {r: overlap(replace(update, release=r), cost_s, 0.5) for r in LADDER}
    assert [found[r].t_star_s for r in LADDER] == [18, 16, 13, 12]
    assert {f.t_sync_s for f in found.values()} == {18}
    assert [found[r].efficiency for r in LADDER] == [None, 2.5, 1.0, 5 / 6]
    assert overlap(replace(update, release=None), cost_s, 0.5) is None
    # Under submit group 0 is complete at 10 and must still be folded: here that decides.
    early = [groups[0]]
    folded = overlap(update_of(early, release="submit"), cost_s, fold_s=1.5)
    assert folded is not None
    assert folded.t_star_s == 11.5


def test_what_the_synchronous_schedule_pays_is_shared_by_padded_tokens():
    chunk = [trajectory(0, i, 1, 1) for i in range(3)]
    chunk[0].tokens_T = [1] * 4
    assert packed_s([chunk, [trajectory(1, 0, 1, 1)]], PassCost(3.0, 0.1)) == {
        "0-0": 2.0, "0-1": 2.0, "0-2": 2.0, "1-0": 4.0,
    }  # fmt: skip
    passes = [
        Interval("learner/0", name, 10.0, 10.0 + seconds, {"trajectories": ids, "padded": 30})
        for name, seconds, ids in (("accumulate", 3.0, ["a", "b"]), ("capture", 1.0, ["b"]))
    ]
    update = update_of([Group(0, "t", "easy", chunk)], intervals=passes)
    assert update.measured_s() == {"a": 1.5, "b": 2.5}
    assert update.passes(["capture"]) == [(30, 1.0)]


pass_lists = st.lists(st.tuples(st.integers(1, 3000), st.floats(0.001, 2)), min_size=1, max_size=9)


@given(pass_lists)
def test_fitted_costs_sum_to_the_measured_ones_and_are_never_negative(passes):
    cost = fit(passes)
    assert cost is not None
    assert cost.pass_s >= 0
    assert cost.token_s >= 0
    fitted = sum(cost.seconds(tokens) for tokens, _ in passes)
    assert fitted == pytest.approx(sum(seconds for _, seconds in passes), rel=1e-6)


@given(st.floats(0.001, 1), st.floats(1e-5, 1e-2))
def test_a_linear_cost_is_found(pass_s, token_s):
    cost = fit([(n, pass_s + token_s * n) for n in (100, 500, 2000)])
    assert cost is not None
    assert cost.pass_s == pytest.approx(pass_s, rel=1e-6)
    assert cost.token_s == pytest.approx(token_s, rel=1e-6)


def test_captures_with_terms_of_their_own_are_fitted_apart():
    passes = [
        Interval("learner/0", name, 0.0, factor * n / 1000, {"trajectories": ["a"], "padded": n})
        for name, factor in (("accumulate", 1), ("capture", 2))
        for n in (100, 200)
    ]
    fold = Interval("learner/0", "fold", 1.0, 1.25)
    for separate, tokens_s in ((True, (0.001, 0.002)), (False, (0.0015, 0.0015))):
        history = History(separate)
        assert history.costs() is None
        history.add(update_of([Group(0, "t", "easy", [trajectory(0, 0, 1, 2)])]))
        assert history.costs() is None
        history.add(replace(history.updates[0], intervals=[*passes, fold]))
        costs = history.costs()
        assert costs is not None
        assert (costs.accumulate.token_s, costs.capture.token_s) == pytest.approx(tokens_s)
        assert costs.fold_s == 0.25


def test_a_runs_efficiency_weighs_updates_by_what_was_at_stake():
    rows = [
        Overlap(t_star_s=5, t_sync_s=9, t_s=6).row(),  # 3 of 4 seconds saved
        Overlap(t_star_s=9.9, t_sync_s=10, t_s=10.2).row(),  # null alone, but its 0.2 s count
        dict.fromkeys(("overlap_efficiency", "t_star_s", "t_sync_s", "t_s")),
    ]
    assert [row["overlap_efficiency"] for row in rows] == [0.75, None, None]
    assert run_efficiency(rows) == pytest.approx(2.8 / 4.1)
    assert run_efficiency(rows[1:]) is None
    assert run_efficiency([]) is None


def test_a_row_without_measured_passes_has_bounds_and_no_efficiency():
    update = update_of([Group(0, "t", "easy", [trajectory(0, 0, 101, 103)])], step_s=3.5)
    assert overlap_row(update, [], None) == {
        "overlap_efficiency": None, "t_star_s": 3.0, "t_sync_s": 3.0, "t_s": 3.5,
    }  # fmt: skip
    assert set(overlap_row(replace(update, release=None), [], None).values()) == {None}
    costs = Costs(PassCost(1.0, 0.1), PassCost(9.0, 9.0), 0.0)
    row = overlap_row(update, [update.trajectories], costs)
    assert (row["t_star_s"], row["t_sync_s"]) == (5.0, 5.0)


def test_arrival_correlation_tells_groups_that_finish_together_from_those_that_do_not():
    def correlation(*arrivals: tuple[float, ...]) -> float | None:
        groups = [
            Group(g, "t", "easy", [trajectory(g, i, 0, s) for i, s in enumerate(times)])
            for g, times in enumerate(arrivals)
        ]
        return update_of(groups).arrival_correlation

    assert correlation((1, 1, 1), (5, 5, 5)) == 1
    # Sums of squares between 6, within 4: means (6/1) and (4/4); (6 - 1) / (6 + 2 x 1).
    assert correlation((0, 1, 2), (2, 3, 4)) == pytest.approx((6 - 1) / (6 + 2))
    spread = correlation((0, 10), (0, 10))
    assert spread is not None
    assert spread < 0
    assert correlation((1, 2)) is None
    assert correlation((3, 3), (3, 3)) is None
