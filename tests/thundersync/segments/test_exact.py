"""Every way gives the gradient of the whole trajectory in one pass (math.md section 5)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.config import ObjectiveConfig
from harness.learner.client import ScoredTokens
from harness.learner.scoring import Scorer
from harness.policy import lora
from tests.thundersync.segments.conftest import (
    KINDS,
    TEMPERATURE,
    VOCABULARY,
    Trajectory,
    difference,
    make,
    one_shot,
    trainable,
    trajectory,
    zeros,
)  # fmt: skip
from thundersync.segments import TurnGradients
from thundersync.segments_held import WAYS, Finished, Way
from thundersync.segments_split import split

EXACT = 1e-12


def turn_gradient(
    model: Any, taken: Trajectory, way: Way, into: list[torch.Tensor] | None = None, **options: Any
) -> list[torch.Tensor]:
    """By turns, one trajectory alone."""
    turns = TurnGradients(model, TEMPERATURE, way, **options)
    turns.begin("a")
    for tokens, mask in taken.turns:
        turns.extend("a", tokens, mask)
    into = zeros(model) if into is None else into
    turns.finish("a", [taken.weights_N], [into])
    assert turns.live_bytes == 0
    return into


# A first observation has tokens; later ones, and any action, may be empty or of one token.
segmentations = st.tuples(
    st.tuples(st.integers(1, 9), st.integers(0, 5)),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5)), max_size=6),
).map(lambda made: [made[0], *made[1]])


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=8, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(turns=segmentations, seed=st.integers(0, 999), chunk=st.sampled_from([1, 4, 512]))
def test_random_segmentations_in_float64(
    exact_models: dict[str, Any], kind: str, turns: list[tuple[int, int]], seed: int, chunk: int
) -> None:
    model, taken = exact_models[kind], trajectory(turns, seed)
    true = one_shot(model, taken) if taken.weights_N else None
    for way in WAYS:
        found = turn_gradient(model, taken, way, chunk_tokens=chunk)
        if true is None:
            assert not any(g.any() for g in found)
        else:
            assert difference(found, true) <= EXACT, way


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "turns",
    [
        [(4, 3)],
        [(1, 1)],
        [(3, 1), (0, 1), (0, 1), (1, 1)],
        [(2, 2), (5, 0), (0, 0), (0, 3), (4, 0)],
        [(1, 0), (1, 0), (0, 4)],
        [(3, 2)] * 60,
        [(70, 2), (1, 1), (70, 3)],
    ],
    ids=["one", "two_tokens", "one_token_each", "holes", "single_first", "sixty", "growing_store"],
)
def test_odd_trajectories_in_float64(
    exact_models: dict[str, Any], turns: list[tuple[int, int]], way: Way
) -> None:
    model, taken = exact_models["qwen3"], trajectory(turns)
    found = turn_gradient(model, taken, way, chunk_tokens=32)
    assert difference(found, one_shot(model, taken)) <= EXACT


@pytest.mark.parametrize("way", WAYS)
def test_observations_between_the_tokens_of_a_turn(exact_models: dict[str, Any], way: Way) -> None:
    draw = random.Random(3)
    masks = [[0, 0, 1, 1, 0, 1], [1, 0, 0, 1], [0, 1, 0]]
    turns = [([draw.randrange(VOCABULARY) for _ in mask], mask) for mask in masks]
    taken = Trajectory(turns, [draw.random() for _ in range(6)])
    model = exact_models["llama"]
    assert difference(turn_gradient(model, taken, way), one_shot(model, taken)) <= EXACT


def test_a_turns_first_token_is_scored_by_the_last_hidden_state_before_it(
    exact_models: dict[str, Any],
) -> None:
    """Without an observation that state is an earlier turn's; each token is scored when its turn
    ends, and once."""
    model, taken = exact_models["qwen3"], trajectory([(3, 2), (0, 2), (2, 1)])
    turns = TurnGradients(model, TEMPERATURE)
    turns.begin("a")
    found = [turns.extend("a", *turn) or [] for turn in taken.turns]
    assert [len(f) for f in found] == [2, 2, 1]
    tokens = torch.tensor(taken.tokens_T)
    logprobs_TV = torch.log_softmax(model(input_ids=tokens[None]).logits[0] / TEMPERATURE, -1)
    actions = [t for t, m in enumerate(taken.action_mask_T) if m]
    true = torch.stack([logprobs_TV[t - 1, tokens[t]] for t in actions])
    torch.testing.assert_close(
        torch.tensor([*itertools.chain(*found)], dtype=torch.float64), true, rtol=1e-12, atol=0.0
    )


def test_one_trajectory_in_mixed_ways(exact_models: dict[str, Any]) -> None:
    """Turns that were retained, then some that had no room, then retained ones again."""
    model, taken = exact_models["qwen3"], trajectory([(4, 3)] * 6)
    turns = TurnGradients(model, TEMPERATURE, chunk_tokens=5)
    turns.begin("a")
    for n, (tokens, mask) in enumerate(taken.turns):
        turns.max_live_bytes = turns.live_bytes if n in (2, 3) else None
        turns.extend("a", tokens, mask)
    found = zeros(model)
    done = turns.finish("a", [taken.weights_N], [found])
    assert (done.retained_tokens, done.rerun_tokens) == (6 + 7 + 7 + 7, 14)
    assert difference(found, one_shot(model, taken)) <= EXACT


@pytest.mark.parametrize("way", WAYS)
def test_several_gradients_of_one_forward_pass(exact_models: dict[str, Any], way: Way) -> None:
    """Of two weightings of the same tokens, as a mixture of objectives needs; they add to what is
    there, in the buffers' own dtype."""
    model, taken = exact_models["llama_untied"], trajectory([(4, 3), (2, 2), (0, 3)])
    other = Trajectory(taken.turns, [w * w - 0.3 for w in taken.weights_N])
    turns = TurnGradients(model, TEMPERATURE, way, chunk_tokens=4)
    turns.begin("a")
    for turn in taken.turns:
        turns.extend("a", *turn)
    first, second = [torch.ones_like(p) for p in trainable(model)], zeros(model, torch.float32)
    done = turns.finish("a", [taken.weights_N, other.weights_N], [first, second])
    inputs = len(taken.tokens_T) - 1
    retained = inputs if way == "retain" else 0
    assert done == Finished("a", 3, retained, inputs - retained, 8)
    assert difference([f - 1.0 for f in first], one_shot(model, taken)) <= EXACT
    assert 0.0 < difference(second, one_shot(model, other)) <= 1e-6
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("way", WAYS)
def test_any_function_of_the_log_probabilities(exact_models: dict[str, Any], way: Way) -> None:
    """An entropy over the vocabulary, whose tokens are weighted by their place among the action
    tokens."""
    model, taken = exact_models["qwen3_untied"], trajectory([(4, 3), (2, 2), (0, 3)])

    def entropy(first: int, logprobs_NV: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
        place_N = torch.arange(first, first + len(targets_N)) + 1
        return -(place_N[:, None] * logprobs_NV.exp() * logprobs_NV).sum()

    turns = TurnGradients(model, TEMPERATURE, way, chunk_tokens=4)
    turns.begin("a")
    for turn in taken.turns:
        turns.extend("a", *turn)
    found = zeros(model)
    turns.finish_scored("a", lambda *given: [entropy(*given)], [found])
    true = one_shot(model, taken, lambda lp, y: entropy(0, lp, y))
    assert difference(found, true) <= EXACT


@pytest.mark.parametrize("way", WAYS)
def test_trajectories_interleave(exact_models: dict[str, Any], way: Way) -> None:
    model = exact_models["qwen3"]
    taken = {str(n): trajectory([(3 + n, 2)] + [(n, 2)] * n, seed=n) for n in range(4)}
    turns = TurnGradients(model, TEMPERATURE, way)
    for name in taken:
        turns.begin(name)
    for step in range(4):
        for name in taken:
            if step < len(taken[name].turns):
                turns.extend(name, *taken[name].turns[step])
    total = zeros(model)
    for name in ("2", "0", "3"):
        turns.finish(name, [taken[name].weights_N], [total])
    turns.discard("1")
    turns.end_of_update()
    each = [one_shot(model, taken[name]) for name in ("0", "2", "3")]
    assert difference(total, [sum(parts) for parts in zip(*each, strict=True)]) <= EXACT


@pytest.mark.parametrize("way", WAYS)
def test_a_rewritten_context_is_a_sequence_of_its_own(
    exact_models: dict[str, Any], way: Way
) -> None:
    """Each token that the policy generated is scored in the context in which it was."""
    model, draw = exact_models["qwen3"], random.Random(5)
    new = lambda n: [draw.randrange(VOCABULARY) for _ in range(n)]  # noqa: E731
    first, act_1 = new(6), new(3)
    second, act_2 = [*first, *act_1, *new(2)], new(2)
    third, act_3 = [*first[:4], *new(3)], new(3)
    given = [(first, act_1), (second, act_2), (third, act_3), ([*third, *act_3], [7])]
    total, turns = zeros(model), TurnGradients(model, TEMPERATURE, way)
    for n, sequence in enumerate(split(given)):
        turns.begin(f"a/{n}")
        for segment in sequence:
            turns.extend(f"a/{n}", segment.tokens_T, segment.action_mask_T)
        count = sum(sum(s.action_mask_T) for s in sequence)
        turns.finish(f"a/{n}", [[1.0] * count], [total])
    each = [
        one_shot(model, Trajectory([(p + a, [0] * len(p) + [1] * len(a))], [1.0] * len(a)))
        for p, a in given
    ]
    assert difference(total, [sum(parts) for parts in zip(*each, strict=True)]) <= EXACT


@pytest.mark.parametrize("way", WAYS)
def test_adapters_alone_are_trainable(way: Way) -> None:
    """The first layer's keys then have no history, and what has none gets no gradient."""
    from thundersync.true_norms import use_true_norms

    model = make("Llama").double()
    lora.inject(model, lora.Adapters(rank=2, alpha=4.0, targets=("q_proj", "up_proj"), seed=0))
    use_true_norms(model)
    model.double()
    with torch.no_grad():
        for n, parameter in enumerate(trainable(model)):
            parameter.normal_(generator=torch.Generator().manual_seed(n)).mul_(0.1)
    taken = trajectory([(4, 3), (2, 2), (0, 3)])
    assert difference(turn_gradient(model, taken, way), one_shot(model, taken)) <= EXACT


@pytest.mark.parametrize("family", ["Qwen3", "Llama"])
def test_float32_is_within_the_control(family: str) -> None:
    """Stock norms; the learner's own scorer packs rows side by side. The control is the largest
    error among 20 packings of the same rows."""
    model = make(family)
    taken = [trajectory([(5, 3)] + [(3, 2 + n % 2)] * n, seed=n) for n in range(6)]
    rows = [ScoredTokens(str(n), 0, None, t.tokens_T, t.action_mask_T) for n, t in enumerate(taken)]
    weights = [0.5, -1.0, 2.0, -0.25, 1.5, -0.75]
    scorer = Scorer(model, TEMPERATURE, ObjectiveConfig())

    def packed(order: Sequence[int], size: int) -> list[torch.Tensor]:
        total = zeros(model)
        for at in range(0, len(order), size):
            chunk = order[at : at + size]
            score = scorer([rows[n] for n in chunk], [weights[n] for n in chunk])
            assert score is not None
            made = torch.autograd.grad(score.policy, trainable(model))
            total = [t + g for t, g in zip(total, made, strict=True)]
        return total

    true, draw = packed(range(6), 3), random.Random(0)
    permuted = (packed(draw.sample(range(6), 6), draw.choice((1, 2, 4, 6))) for _ in range(20))
    control = max(difference(p, true) for p in permuted)
    assert control > 0.0
    for way, chunk in itertools.product(WAYS, (6, 512)):
        total = zeros(model)
        for t, weight in zip(taken, weights, strict=True):
            scaled = Trajectory(t.turns, [weight] * len(t.weights_N))
            turn_gradient(model, scaled, way, total, chunk_tokens=chunk)
        assert difference(total, true) <= 3 * control, (way, chunk)
