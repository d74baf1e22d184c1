"""The statistics against scipy, and against figures worked out by hand."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as reference

from harness.solve_rates import standard_error
from results import stats
from results.stats import (
    Estimate,
    Reached,
    bootstrap,
    improvement,
    median_time,
    paired_difference,
    paired_differences,
    paired_ratio,
    probability_of_improvement,
    seeds_to_resolve,
    t_interval,
    time_to_target,
    verdict,
)

# Two runs of four tasks.
SCORES = numpy.array([[0.0, 0.5, 1.0, 1.0], [0.0, 0.5, 0.5, 1.0]])
figures = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


@settings(deadline=None)
@given(figures)
def test_student_s_interval_is_scipy_s(values):
    found = t_interval(values)
    if len(set(values)) == 1:
        assert found.interval == pytest.approx((values[0], values[0]))
        return
    expected = reference.ttest_1samp(values, 0).confidence_interval(0.95)
    assert found.interval == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_by_hand():
    # 40, 50, 60: standard error 10 / sqrt(3), t(2) = 4.3027.
    found = t_interval([40.0, 50.0, 60.0])
    assert found.value == 50 and found.runs == 3
    assert found.low == pytest.approx(50 - 4.30265 * 10 / math.sqrt(3), abs=1e-3)
    # 8/4 and 10/10: geometric mean sqrt(2), logs ln 2 and 0, t(1) = 12.706.
    ratio = paired_ratio({0: 8.0, 1: 10.0, 7: 1.0}, {0: 4.0, 1: 10.0})
    assert ratio.value == pytest.approx(math.sqrt(2)) and ratio.runs == 2
    half = 12.7062 * math.log(2) / math.sqrt(2) / math.sqrt(2)
    assert ratio.low == pytest.approx(math.exp(math.log(2) / 2 - half), rel=1e-3)
    # Middle half of 0 0 .5 .5 .5 1 1 1: two of eight cut at either end.
    assert stats.iqm(SCORES) == pytest.approx((0.5 + 0.5 + 0.5 + 1) / 4)
    assert stats.mean(SCORES) == pytest.approx(4.5 / 8)
    # Means over runs 0, 0.5, 0.75, 1.
    assert stats.median(SCORES) == pytest.approx(0.625)


@settings(deadline=None)
@given(st.integers(2, 5), st.integers(1, 6), st.integers(0, 2**31))
def test_probability_of_improvement_is_scipy_s(runs, tasks, seed):
    draw = numpy.random.default_rng(seed)
    one, other = draw.integers(3, size=(2, runs, tasks)) / 2
    expected = numpy.mean(
        [reference.mannwhitneyu(other[:, t], one[:, t]).statistic / runs**2 for t in range(tasks)]
    )
    assert probability_of_improvement(one, other) == pytest.approx(expected)


def test_one_seed_gets_no_interval_from_anything():
    one = SCORES[:1]
    for found in (
        t_interval([0.5]),
        paired_ratio({0: 2.0}, {0: 1.0}),
        paired_differences({0: 2.0, 1: 3.0}, {0: 1.0}),
        bootstrap(one, stats.mean),
        improvement(one, SCORES),
    ):
        assert found.value is not None and found.interval is None
        assert verdict(found) == "one seed: no interval"
        assert seeds_to_resolve(found) is None


def test_nothing_known_is_no_figure():
    assert t_interval([]).value is None
    assert t_interval([1.0, None]).value is None
    assert paired_ratio({0: 1.0}, {1: 1.0}).value is None
    assert verdict(t_interval([])) == "not measured"


def test_crossed_intervals_hold_what_a_run_has_learnt_for_all_its_tasks():
    """Two runs, one that solves all and one that solves nothing: whole runs drawn give 0, 0.5 or 1;
    a run drawn for each task alone would make 100 tasks look like 100 independent draws."""
    scores = numpy.repeat([[0.0], [1.0]], 100, axis=1)
    crossed = bootstrap(scores, stats.mean)
    assert (crossed.value, crossed.low, crossed.high) == (0.5, 0.0, 1.0)
    stratified = bootstrap(scores, stats.mean, crossed=False)
    assert stratified.low > 0.35 and stratified.high < 0.65


def test_the_stratified_interval_of_the_mean_has_the_right_width():
    """Scores that are independent noise: drawing tasks and drawing runs each bring the variance
    that scipy's bootstrap of single scores has."""
    scores = numpy.random.default_rng(3).random((20, 50))
    found = bootstrap(scores, stats.mean, crossed=False, resamples=4000)
    theirs = reference.bootstrap((scores.ravel(),), numpy.mean, method="percentile", rng=1)
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert found.high - found.low == pytest.approx(math.sqrt(2) * width, rel=0.1)


def test_the_same_seed_gives_the_same_interval():
    scores = numpy.random.default_rng(3).random((3, 8))
    assert bootstrap(scores, stats.iqm) == bootstrap(scores, stats.iqm)
    assert bootstrap(scores, stats.iqm) != bootstrap(scores, stats.iqm, seed=1)


def test_how_many_seeds_would_resolve_it():
    """Mean 1, standard deviation 2: t(n-1) x 2 / sqrt(n) < 1 first at n = 18 (t(17) = 2.110)."""
    found = t_interval([-1.0, 1.0, 3.0])
    assert seeds_to_resolve(found) == 18
    assert verdict(found) == "not resolved; about 18 seeds would be needed"
    assert verdict(t_interval([1.0, 1.1, 0.9])) == "resolved"
    assert verdict(t_interval([1.0, 1.1, 0.9]), null=1.0).startswith("not resolved; more than")
    assert verdict(Estimate(1.2, 1.1, 1.3, 3), null=1.0) == "resolved"


def test_time_to_a_target_is_censored_where_it_was_never_reached():
    assert time_to_target([(0, 0.3), (5, 0.5), (9, 0.6)], 0.5) == Reached(5, False)
    assert time_to_target([(0, 0.3), (9, 0.4)], 0.5) == Reached(9, True)
    assert time_to_target([], 0.5) is None
    # By hand: three reach it at 2, 4, 6, one is cut off at 5: 3/4, 1/2, then 0.
    runs = [Reached(2, False), Reached(4, False), Reached(5, True), Reached(6, False)]
    assert median_time(runs) == 4
    assert median_time([Reached(2, False), Reached(5, True), Reached(5, True)]) is None
    assert median_time([Reached(5, True)]) is None


def test_what_the_seeds_can_not_tell():
    """Pooled variance (200 + 0) / 4 = 50, t(4) = 2.776: 2.776 x sqrt(2 x 50 / 3) = 16.0."""
    assert stats.resolution([[40, 50, 60], [50, 50, 50]]) == pytest.approx(16.03, abs=0.01)
    assert stats.resolution([[40, 50, 60]]) is None


def test_a_pair_without_tasks_is_no_figure():
    assert paired_difference({}, {}).difference is None
    assert paired_difference({"a": [True]}, {"a": [False]}).standard_error is None


def test_paired_by_task_what_is_hard_for_both_drops_out():
    """The second solves one sample in ten more of every task but one, whatever the task's rate:
    differences 0.1 x 9 and 0, where each side alone has a standard error of 0.1."""
    first = {f"t{i}": [n < i for n in range(10)] for i in range(10)}
    second = {f"t{i}": [n < i + (i < 9) for n in range(10)] for i in range(10)}
    found = paired_difference(first, second)
    assert found.difference == pytest.approx(0.09)
    # Squared deviations 9 x 0.01^2 + 0.09^2 = 0.009, over 9 and over 10 tasks.
    assert found.standard_error == pytest.approx(math.sqrt(0.009 / 9 / 10))
    assert found.standard_error < standard_error(first) / 5
    assert (found.tasks, found.unpaired) == (10, 0)
    back = paired_difference(second, first)
    assert back.difference == -found.difference


def test_only_tasks_that_both_have_are_compared():
    found = paired_difference(
        {"a": [True], "b": [False], "mine": [True], "lost": []},
        {"a": [True], "b": [True], "lost": [True], "other": [False]},
    )
    assert (found.difference, found.tasks, found.unpaired) == (0.5, 2, 3)
