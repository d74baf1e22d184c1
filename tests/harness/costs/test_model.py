"""Seconds by hand for a toy policy, and what holds for every policy and device."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.costs.config import HardwareConfig
from harness.costs.model import CostModel, Split
from harness.costs.shapes import Shape, shape

# 100 parameters; a pair of tokens costs 4 x 2 x 2 x 3 = 48, a token's cache is 2 x 2 x 1 x 3 = 12.
TOY = Shape("toy", 100, 100, layers=2, hidden=6, heads=2, key_value_heads=1, head_dim=3,
            shared_parameters=100, all_layers=2)  # fmt: skip
HARDWARE = HardwareConfig(
    label="toy", devices=4, memory_bytes=1000, memory_bytes_s=1000, flops_s=10_000,
    host_bytes_s=100, host_memory_bytes_s=2000, node_devices=4, link_bytes_s=50, network_bytes_s=5,
    weight_bytes=2, cache_bytes=2, decode_memory_efficiency=0.5, decode_compute_efficiency=0.25,
    decode_step_s=0.1, decode_sequence_s=0.01, prefill_efficiency=0.5, prefill_s=0.3,
    cache_memory_fraction=0.9, train_efficiency=0.5, recompute=1, chunk_s=0.2, capture_s=0.4,
    fold_s=0.6, buffer_memory_efficiency=0.8, buffer_overlap=0.5, collective_efficiency=0.5,
    step_s=0.7, publish_efficiency=0.25, publish_s=0.9, switch_s=3.0,
)  # fmt: skip
SPLIT = Split(engine_devices=2, learner_devices=2)


def model(split: Split = SPLIT, policy: Shape = TOY, **changes: object) -> CostModel:
    return CostModel(dataclasses.replace(HARDWARE, **changes), policy, split)


def test_a_decoding_step_is_the_slower_of_memory_and_compute() -> None:
    # 200 bytes of weights and 24 of each token's cache, at 500 bytes/s; 200 FLOPs a sequence and 48
    # a token of context, at 2,500 FLOPs/s.
    memory_bound = model().decode_step_s(1, 10)
    assert memory_bound == pytest.approx((200 + 240) / 500 + 0.1 + 0.01)
    compute_bound = model().decode_step_s(20, 10)
    assert compute_bound == pytest.approx((20 * 200 + 480) / 2500 + 0.1 + 0.2)
    assert model().decode_step_s(0, 0) == 0


def test_a_prefill_reads_the_new_tokens_alone() -> None:
    # Four new tokens behind ten: 2 x 100 x 4 FLOPs and 4 x (10 + 2.5) pairs of 48, at 5,000 a
    # second; reading the weights and ten tokens' cache takes longer.
    assert model().prefill_s(4, 10) == pytest.approx((200 + 240) / 500 + 0.3)
    assert model(memory_bytes_s=1e9).prefill_s(4, 10) == pytest.approx(
        (800 + 4 * 12.5 * 48) / 5000 + 0.3
    )
    assert model().prefill_s(0, 10) == 0


def test_a_backward_is_two_forwards_more_and_one_again() -> None:
    # Rows of 3 and 5: 8 x 200 FLOPs and (6 + 15) pairs of 48 a forward, at 5,000 a second.
    forward_s = (8 * 200 + 21 * 48) / 5000
    assert model().forward_s([3, 5]) == pytest.approx(forward_s + 0.2)
    assert model().backward_s([3, 5]) == pytest.approx(4 * forward_s + 0.2)
    assert model(recompute=0).backward_s([3, 5]) == pytest.approx(3 * forward_s + 0.2)
    padded_s = (10 * 200 + 30 * 48) / 5000
    assert model(padded=True).forward_s([3, 5]) == pytest.approx(padded_s + 0.2)
    assert model().backward_s([]) == 0


def test_ledgers_move_through_memory() -> None:
    # A buffer is 400 bytes; the device moves 800 bytes a second.
    assert model().gradient_bytes() == 400
    assert model().capture_overhead_s(2) == pytest.approx(2 * (0.4 + 1200 / 800))
    assert model().fold_s(2) == pytest.approx(0.6 + 1600 / 800)
    sharded = dataclasses.replace(SPLIT, ledger_sharded=True)
    assert model(sharded).fold_s(2) == pytest.approx(0.6 + 800 / 800)


def test_ledgers_in_host_memory_share_it_and_hide_behind_passes() -> None:
    # Two learners share 2,000 bytes/s, of which 80 % are had: 800 each; the link has 50.
    host = dataclasses.replace(SPLIT, ledger_storage="host")
    assert model(host).capture_overhead_s(1) == pytest.approx(0.4 + 0.5 * 400 / 50)
    assert model(host, host_bytes_s=1e9).capture_overhead_s(1) == pytest.approx(0.4 + 0.5 * 1.5)
    assert model(host).fold_s(2) == pytest.approx(0.6 + 0.5 * 1600 / 800)


def test_a_step_exchanges_gradients_and_a_publication_sends_weights() -> None:
    # 30 bytes a parameter, shared by two ranks, at 800 bytes/s; 400 bytes of gradient at 25.
    assert model().step_s() == pytest.approx(0.7 + 1500 / 800 + 400 / 25)
    assert model(optimizer_sharded=False).step_s() == pytest.approx(0.7 + 3000 / 800 + 400 / 25)
    one = dataclasses.replace(SPLIT, learner_devices=1)
    assert model(one).step_s() == pytest.approx(0.7 + 3000 / 800)
    assert model().publish_s() == pytest.approx(0.9 + 200 / (50 * 0.25))
    assert model(node_devices=2).publish_s() == pytest.approx(0.9 + 200 / (5 * 0.25))
    assert model(engine_tensor_parallel=2).publish_s() == pytest.approx(0.9 + 100 / (50 * 0.25))
    assert model().switch_s() == 3.0


def test_tensor_parallel_devices_share_weights_and_exchange_activations() -> None:
    halves = model(engine_tensor_parallel=2)
    assert halves.engine_replicas == 1 and model().engine_replicas == 2
    # Two all-reduces in each of 2 layers of 6 x 2 bytes, each byte once: 2 x (2 - 1) / 2.
    exchange_s = 2 * 2 * 6 * 2 / (50 * 0.5)
    assert halves.decode_step_s(1, 10) == pytest.approx(440 / 1000 + 0.11 + exchange_s)
    assert halves.context_capacity_tokens == (1800 - 200) // 24
    assert model().context_capacity_tokens == (900 - 200) // 24


def test_threads_are_one_replica_and_add_their_gain() -> None:
    threads = model(threads=True, engine_thread_gain=0.5, learner_thread_gain=0.0)
    assert (threads.engine_replicas, threads.learner_ranks) == (1, 1)
    assert threads.decode_step_s(20, 10) == pytest.approx(4480 / 2500 / 1.5 + 0.3)
    assert threads.backward_s([3]) == model().backward_s([3])


def test_a_mixture_reads_the_experts_that_are_taken() -> None:
    mixture = dataclasses.replace(TOY, parameters=100, shared_parameters=20, experts=4,
                                  experts_per_token=1, active_parameters=40)  # fmt: skip
    assert mixture.weights_read(1) == pytest.approx(20 + 80 / 4)
    assert mixture.weights_read(2) == pytest.approx(20 + 80 * (1 - 0.75**2))
    assert mixture.weights_read(1e6) == pytest.approx(100)
    assert TOY.weights_read(1) == 100


LENGTHS = st.lists(st.integers(1, 10_000), min_size=1, max_size=8)


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(1, 500), st.floats(0, 1e6), st.floats(0, 1e6))
def test_more_sequences_or_context_never_cost_less(a: int, b: int, c: float, d: float) -> None:
    costs = model(policy=shape("moe_31b"), memory_bytes=1e12)
    low, high = costs.decode_step_s(min(a, b), min(c, d)), costs.decode_step_s(max(a, b), max(c, d))
    assert 0 < low <= high


@settings(deadline=None)
@given(LENGTHS, LENGTHS)
def test_one_chunk_costs_no_more_than_its_parts(one: list[int], two: list[int]) -> None:
    costs = model()
    assert costs.backward_s(one + two) >= max(costs.backward_s(one), costs.backward_s(two))
    assert costs.backward_s(one + two) <= costs.backward_s(one) + costs.backward_s(two)
    assert costs.forward_s(one) < costs.backward_s(one)


@settings(deadline=None)
@given(st.integers(1, 64), st.floats(0, 1e5))
def test_no_step_beats_either_roof(running: int, context: float) -> None:
    costs = model(decode_step_s=0.0, decode_sequence_s=0.0)
    seconds = costs.decode_step_s(running, context)
    assert seconds >= (200 + 24 * context) / (0.5 * 1000) * (1 - 1e-12)
    assert seconds >= (200 * running + 48 * context) / (0.25 * 10_000) * (1 - 1e-12)


def test_shared_cores_stretch_what_wants_more_of_them_than_there_are() -> None:
    shared = model(cores=2, sandbox_cores=0.5)
    assert shared.contention(1, 0, 2) == 1.0  # two wanted, two there
    assert shared.contention(1, 0, 0) == 1.0
    assert shared.contention(1, 1, 8) == 3.0
    assert model().contention(4, 4, 1000) == 1.0  # cores of their own
    few_felt = model(cores=2, sandbox_cores=0.5, sandboxes_felt=4)
    assert few_felt.contention(1, 1, 3) == shared.contention(1, 1, 3) == 1.75
    assert few_felt.contention(1, 1, 64) == shared.contention(1, 1, 4) == 2.0


@settings(deadline=None)
@given(st.floats(0, 4), st.floats(0, 4), st.floats(0, 100), st.floats(0, 100))
def test_company_never_makes_faster(engine: float, learner: float, few: float, more: float) -> None:
    shared = model(cores=2, sandbox_cores=0.5)
    alone, beside = sorted((few, more))
    assert shared.contention(engine, learner, alone) >= 1.0
    assert shared.contention(engine, learner, alone) <= shared.contention(engine, learner, beside)
