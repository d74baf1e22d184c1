"""The ledger equals the plain sum of advantage x gradient, whatever the order of arrival."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import ObjectiveConfig
from harness.objectives.grpo import Grpo
from thundersync.ledger import GradientLedger, LedgerError

SHAPES = ((3, 2), (5,))


def gradients(count: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[list]:
    generator = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES]
        for _ in range(count)
    ]


def advantages(rewards: list[float], estimator: str) -> list[float]:
    return Grpo(ObjectiveConfig(estimator=estimator), group_size=2).advantages(rewards)


def plain(grads: list[list], values: list[float]) -> torch.Tensor:
    flat = torch.stack([torch.cat([t.flatten() for t in g]) for g in grads])
    return (torch.tensor(values, dtype=flat.dtype)[:, None] * flat).sum(0)


def stream(
    ledger: GradientLedger, rewards: list[float], grads: list[list], values: list[float], order
) -> torch.Tensor:
    total = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    for i in order:
        ledger.capture(7, [str(i)], [t.clone() for t in grads[i]])
        ledger.commit([str(i)], rewards[i])
    known = {str(i): (r, a) for i, (r, a) in enumerate(zip(rewards, values, strict=True))}
    ledger.fold(7, known, total)
    ledger.end_of_update()
    return torch.cat([t.flatten() for t in total])


@pytest.mark.parametrize("form", ["affine", "bucket", "auto"])
@pytest.mark.parametrize("estimator", ["mean_std_population", "mean"])
@pytest.mark.parametrize("rewards", [[1.0, 0.0, 1.0, 0.0], [0.0, 0.5, 1.0, 0.25]])
def test_every_arrival_order_gives_the_batch_gradient(form, estimator, rewards):
    grads, values = gradients(4), advantages(rewards, estimator)
    truth = plain(grads, values)
    for order in itertools.permutations(range(4)):
        got = stream(GradientLedger(form), rewards, grads, values, order)
        assert torch.linalg.norm(got - truth) <= 1e-12 * torch.linalg.norm(truth)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 1.0, 0.3, -2.5, 100.0, 99.5]), min_size=2, max_size=12),
    st.sampled_from(["affine", "bucket", "auto"]),
    st.randoms(use_true_random=False),
)
def test_random_groups_give_the_batch_gradient(rewards, form, random):
    grads, values = gradients(len(rewards), seed=1), advantages(rewards, "mean_std_population")
    order = list(range(len(rewards)))
    random.shuffle(order)
    truth = plain(grads, values)
    got = stream(GradientLedger(form), rewards, grads, values, order)
    scale = sum(abs(v) for v in values) or 1.0
    assert torch.linalg.norm(got - truth) <= 1e-12 * scale * 10


def test_rewards_near_100_lose_nothing_in_float32():
    """The shift constant: without it this error is near 4e-4 (math.md section 2)."""
    rewards = [100.0, 100.25, 99.5, 100.5]
    grads = gradients(4, dtype=torch.float32)
    values = advantages(rewards, "mean_std_population")
    total = [torch.zeros(shape) for shape in SHAPES]
    ledger = GradientLedger("affine")
    for i, reward in enumerate(rewards):
        ledger.capture(0, [str(i)], [t.clone() for t in grads[i]])
        ledger.commit([str(i)], reward)
    ledger.fold(0, {str(i): (rewards[i], values[i]) for i in range(4)}, total)
    truth = plain([[t.double() for t in g] for g in grads], values)
    error = torch.linalg.norm(torch.cat([t.flatten() for t in total]).double() - truth)
    assert 0 < error <= 1e-6 * torch.linalg.norm(truth)


def test_buffers_are_lazy_and_counted_exactly():
    ledger = GradientLedger("bucket")
    size = sum(math.prod(shape) for shape in SHAPES) * 8
    grads = gradients(4)
    for i, (group, reward, buffers) in enumerate(
        [(0, 1.0, 1), (0, 1.0, 2), (0, 0.0, 2), (1, 0.0, 3)]
    ):
        ledger.capture(group, [str(i)], grads[i])
        ledger.commit([str(i)], reward)
        # A second gradient of the same reward is held beside its buffer while it is pending.
        assert ledger.buffers_peak == buffers
        assert ledger.bytes_peak == buffers * size
    ledger.drop(0)
    ledger.drop(1)
    ledger.end_of_update()


def test_the_first_gradient_of_a_buffer_is_swapped_in_not_copied():
    ledger = GradientLedger("bucket")
    (grads,) = gradients(1)
    ledger.capture(0, ["a"], grads)
    ledger.commit(["a"], 1.0)
    assert ledger._groups[0].buckets[1.0] is grads


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("form", ["affine", "bucket", "auto"])
@pytest.mark.parametrize("where", ["first", "added", "always"])
def test_a_non_finite_gradient_never_reaches_the_total(bad, form, where):
    """It is found when its group folds; the error names who it may have come from."""
    grads = gradients(5)
    grads[{"first": 0, "added": 2, "always": 4}[where]][1][2] = bad
    ledger = GradientLedger(form)
    for i, reward in enumerate([1.0, 0.0, 1.0, 0.0]):
        ledger.capture(7, [f"t{i}"], grads[i], grads[4] if i == 3 else None)
        ledger.commit([f"t{i}"], reward)
    total = [torch.ones(shape, dtype=torch.float64) for shape in SHAPES]
    known = {"t0": (1.0, 1.0), "t1": (0.0, -1.0), "t2": (1.0, 1.0), "t3": (0.0, -1.0)}
    with pytest.raises(LedgerError, match=r"group 7: .* t0, t1, t2, t3 is not finite"):
        ledger.fold(7, known, total)
    assert all(bool((t == 1.0).all()) for t in total)
    ledger.end_of_update()


def test_a_capture_that_is_thrown_away_poisons_nothing():
    grads, values = gradients(3), [1.0, -1.0]
    bad = [torch.full(shape, math.nan, dtype=torch.float64) for shape in SHAPES]
    ledger = GradientLedger()
    ledger.capture(0, ["a"], bad)
    ledger.discard(["a"])
    ledger.capture(1, ["lost"], [t.clone() for t in bad])
    ledger.commit(["lost"], 1.0)
    ledger.drop(1)  # its group was dropped
    total = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    for name, reward, i in (("a", 1.0, 0), ("b", 0.0, 1)):
        ledger.capture(0, [name], [t.clone() for t in grads[i]])
        ledger.commit([name], reward)
    ledger.fold(0, {"a": (1.0, 1.0), "b": (0.0, -1.0)}, total)
    ledger.end_of_update()
    assert torch.allclose(torch.cat([t.flatten() for t in total]), plain(grads[:2], values))


def test_large_finite_gradients_are_no_error():
    """Their norm overflows; every element is finite."""
    ledger = GradientLedger()
    ledger.capture(0, ["a"], [torch.full((3,), 1e30)])
    ledger.commit(["a"], 1.0)
    total = [torch.zeros(3)]
    ledger.fold(0, {"a": (1.0, 0.5), "b": (0.0, -0.5)}, total)
    assert torch.equal(total[0], torch.full((3,), 5e29))


def test_what_would_count_twice_or_not_at_all_is_an_error():
    ledger = GradientLedger()
    first, second, third = gradients(3)
    ledger.capture(0, ["a"], first)
    with pytest.raises(LedgerError, match="captured before"):
        ledger.capture(0, ["a"], second)
    with pytest.raises(LedgerError, match="not finite"):
        ledger.commit(["a"], math.nan)
    with pytest.raises(LedgerError, match=r"pending \['a'\]"):
        ledger.end_of_update()
    ledger.discard(["a"])
    ledger.capture(0, ["a"], third)  # a retried rollout enters anew
    ledger.commit(["a"], 1.0)
    with pytest.raises(LedgerError, match="no pending capture"):
        ledger.commit(["a"], 1.0)
    total = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    with pytest.raises(LedgerError, match="closed otherwise"):
        ledger.fold(0, {"a": (0.0, 1.0), "b": (1.0, -1.0)}, total)


def test_advantages_that_are_not_affine_are_refused_by_the_affine_form():
    rewards, values = [0.0, 0.5, 1.0], [-1.0, 0.9, 0.1]
    with pytest.raises(LedgerError, match=r"not affine.*ledger\.form=bucket"):
        stream(GradientLedger("affine"), rewards, gradients(3), values, range(3))
    got = stream(GradientLedger("bucket"), rewards, gradients(3), values, range(3))
    assert torch.allclose(got, plain(gradients(3), values))


def test_the_bucket_cap_is_an_error_that_names_the_way_out():
    ledger = GradientLedger("bucket", bucket_cap=2)
    for i, grads in enumerate(gradients(3)):
        ledger.capture(0, [str(i)], grads)
        if i < 2:
            ledger.commit([str(i)], float(i))
    with pytest.raises(LedgerError, match=r"raise ledger\.bucket_cap, or take ledger\.form=auto"):
        ledger.commit(["2"], 2.0)
