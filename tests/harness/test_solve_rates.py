"""pass@k against every subset, and clustered errors by hand."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.solve_rates import (
    pass_at_k,
    passes,
    solve_rate,
    standard_error,
)

SOLVED = {"a": [True, True], "b": [True, False], "c": [False, False], "d": [True, False]}


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_all_subsets_with_a_solved_sample(samples, data):
    k = data.draw(st.integers(1, len(samples)))
    subsets = list(itertools.combinations(samples, k))
    share = Fraction(sum(any(subset) for subset in subsets), len(subsets))
    assert pass_at_k(len(samples), sum(samples), k) == float(share)


@given(st.integers(1, 400), st.data())
def test_pass_at_k_keeps_its_digits_for_many_samples(samples, data):
    """Against exact fractions: a product of floats, or 1 less a rounded quotient, loses them."""
    solved, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    missed = Fraction(1)
    for i in range(k):
        missed *= Fraction(max(0, samples - solved - i), samples - i)
    assert pass_at_k(samples, solved, k) == float(1 - missed)


def test_pass_at_k_is_a_probability_where_factorials_overflow():
    assert pass_at_k(100_000, 1, 50_000) == 0.5
    assert pass_at_k(100_000, 100_000, 3) == 1.0
    assert pass_at_k(100_000, 0, 100_000) == 0.0
    assert pass_at_k(10**6, 1, 1) == 1e-6


@pytest.mark.parametrize(("n", "c", "k"), [(4, 2, 0), (4, 2, 5), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
def test_what_has_no_estimate_is_refused(n, c, k):
    with pytest.raises(ValueError, match=r"pass@"):
        pass_at_k(n, c, k)


def test_rates_by_hand():
    """Task rates 1, 1/2, 0, 1/2: mean 1/2, squared deviations 1/4 + 1/4, over 3 and 4 tasks."""
    assert solve_rate(SOLVED) == 0.5
    assert standard_error(SOLVED) == pytest.approx(math.sqrt(0.5 / 3 / 4), rel=1e-15)
    assert passes(SOLVED, 2) == {1: 0.5, 2: 0.75}


def test_the_tasks_are_the_sample():
    """Ten times the same samples of the same tasks make nothing surer."""
    often = {task: samples * 10 for task, samples in SOLVED.items()}
    assert standard_error(often) == standard_error(SOLVED)
    assert solve_rate(often) == solve_rate(SOLVED)


def test_lost_samples_leave_a_task_without_its_largest_k():
    solved = {"a": [True], "b": [False, False, True], "gone": []}
    assert solve_rate(solved) == pytest.approx((1 + 1 / 3) / 2)
    got = passes(solved, 4)
    assert got == {1: pytest.approx((1 + 1 / 3) / 2), 2: pytest.approx(2 / 3), 3: 1.0, 4: None}


def test_too_few_tasks_have_no_error():
    assert solve_rate({}) is None
    assert standard_error({"a": [True]}) is None
