"""What trajectories hold: measured truly, bounded, and freed."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest
import torch

from tests.thundersync.segments.conftest import (
    KINDS,
    TEMPERATURE,
    Trajectory,
    difference,
    make,
    one_shot,
    trajectory,
    zeros,
)  # fmt: skip
from thundersync.segments import TurnGradients
from thundersync.segments_bench import allocations
from thundersync.segments_held import WAYS, Way
from thundersync.segments_past import Shape, Store, capacity

SEEN, ACTED, TURNS = 20, 8, 6
TAKEN = [trajectory([(SEEN, ACTED)] * TURNS, seed) for seed in range(3)]


def extend(turns: TurnGradients, name: str, taken: Trajectory) -> None:
    turns.begin(name)
    for turn in taken.turns:
        turns.extend(name, *turn)


@pytest.mark.parametrize("way", ["retain", "sweep"])
@pytest.mark.parametrize("kind", KINDS)
def test_live_bytes_are_what_the_allocator_handed_out(kind: str, way: Way) -> None:
    family, tied, key_heads = KINDS[kind]
    model = make(family, tied, key_heads)
    extend(TurnGradients(model, TEMPERATURE, way), "a", TAKEN[0])  # what a first pass leaves
    turns = TurnGradients(model, TEMPERATURE, way)
    handed_out = allocations(lambda: extend(turns, "a", TAKEN[0])).kept_bytes
    assert turns.live_bytes == pytest.approx(handed_out, rel=0.02)
    assert turns.live_bytes > (500_000 if way == "retain" else 0)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_left_of_a_trajectory_that_ended(way: Way) -> None:
    """At once, not when the collector of reference circles comes by."""
    model = make("Llama")
    turns, into = TurnGradients(model, TEMPERATURE, way), zeros(model)
    weights = TAKEN[0].weights_N

    def ended() -> None:
        extend(turns, "a", TAKEN[0])
        turns.discard("a")
        extend(turns, "b", TAKEN[0])
        turns.finish("b", [weights], [into])

    ended()
    gc.disable()
    try:
        assert allocations(ended).kept_bytes == 0
    finally:
        gc.enable()
    assert turns.live_bytes == 0


@pytest.mark.parametrize("key_heads", [1, 4])
def test_a_turns_graph_does_not_copy_what_came_before_it(key_heads: int) -> None:
    """Turns alike differ in their mask alone, which looks further back; the past's keys and values
    would be some 8 times as much in every layer."""
    turns = TurnGradients(make("Qwen3", key_heads=key_heads), TEMPERATURE)
    extend(turns, "a", TAKEN[0])
    pieces = turns._under_way["a"].retained
    grown = [b.graph_bytes - a.graph_bytes for a, b in itertools.pairwise(pieces[1:])]
    length = SEEN + ACTED
    assert grown == [length * length * 4] * (TURNS - 2)


def test_a_buffer_grows_by_doubling_and_keeps_what_it_had() -> None:
    store = Store(Shape(make("Llama")))
    assert store.held_bytes == 0
    moves = 0
    for tokens in range(1, 300):
        expected, before = store.bytes_for(tokens), store.values
        store.reserve(tokens, tokens - 1)
        store.values[:, :, :, tokens - 1] = tokens
        assert store.held_bytes == expected
        moves += store.values is not before
    assert moves == 4  # 64, 128, 256, 512
    assert store.values[1, 1, 0, :299, 3].tolist() == list(range(1, 300))
    assert [capacity(n) for n in (1, 64, 65, 129)] == [64, 64, 128, 256]


def whole_need() -> int:
    turns = TurnGradients(make("Qwen3"), TEMPERATURE)
    for n, taken in enumerate(TAKEN):
        extend(turns, str(n), taken)
    return turns.live_bytes


@pytest.mark.parametrize(
    ("share", "ways"),
    [(1.0, set()), (0.6, {"sweep"}), (0.02, {"sweep", "whole"}), (0.0, {"whole"})],
)
def test_the_limit_holds_between_verbs_and_what_fell_back_is_told(
    exact_models: dict[str, Any], share: float, ways: set[str]
) -> None:
    """Whatever was given up, the gradient is the same."""
    model = exact_models["qwen3"]
    limit = int(share * 2 * whole_need())  # float64 takes twice as much
    turns = TurnGradients(model, TEMPERATURE, max_live_bytes=limit, chunk_tokens=16)
    for n in range(len(TAKEN)):
        turns.begin(str(n))
    for step in range(TURNS):
        for n, taken in enumerate(TAKEN):
            turns.extend(str(n), *taken.turns[step])
            assert turns.live_bytes <= limit
    fallbacks = turns.drain_fallbacks()
    assert {f.way for f in fallbacks} == ways
    assert turns.drain_fallbacks() == []
    for fell in fallbacks:
        assert fell.live_bytes + fell.needed_bytes > limit == fell.limit_bytes
        assert f"segments.max_live_bytes={limit}" in str(fell)
        assert 0 <= fell.turn < TURNS
    total, rerun = zeros(model), 0
    for n, taken in enumerate(TAKEN):
        rerun += turns.finish(str(n), [taken.weights_N], [total]).rerun_tokens
    assert (rerun > 0) == bool(ways)
    each = [one_shot(model, taken) for taken in TAKEN]
    assert difference(total, [sum(parts) for parts in zip(*each, strict=True)]) <= 1e-12


def test_room_that_was_freed_is_used_again(exact_models: dict[str, Any]) -> None:
    model = exact_models["llama"]
    turns = TurnGradients(model, TEMPERATURE)
    extend(turns, "a", TAKEN[0])
    turns = TurnGradients(model, TEMPERATURE, max_live_bytes=turns.live_bytes)
    extend(turns, "a", TAKEN[0])
    assert turns.drain_fallbacks() == []
    extend(turns, "b", TAKEN[1])
    assert {f.trajectory_id for f in turns.drain_fallbacks()} == {"b"}
    assert turns.finish("a", [TAKEN[0].weights_N], [zeros(model)]).rerun_tokens == 0
    turns.discard("b")
    extend(turns, "c", TAKEN[2])
    assert turns.drain_fallbacks() == []


def test_a_trajectory_held_as_tokens_alone_has_no_log_probabilities_yet() -> None:
    turns = TurnGradients(make("Llama"), TEMPERATURE, max_live_bytes=0)
    turns.begin("a")
    assert turns.extend("a", *TAKEN[0].turns[0]) is None
    assert turns.live_bytes == 0
    kept = TurnGradients(make("Llama"), TEMPERATURE, "sweep")
    kept.begin("a")
    logprobs = kept.extend("a", *TAKEN[0].turns[0])
    assert logprobs is not None
    assert len(logprobs) == ACTED
    assert all(torch.tensor(logprobs) < 0.0)
