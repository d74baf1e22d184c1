"""Importance weights in float32 where policies are far apart: right values, finite gradients.

The failure to avoid is prime-rl#2972's: exp overflows, and what a mask multiplies by 0 is NaN.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.config import ImportanceConfig, ObjectiveConfig, ScheduleConfig
from harness.learner.client import ScoredTokens
from harness.learner.scoring import Scorer
from harness.objectives import offpolicy
from tests.harness.objectives.literal import Unigram

INFINITE = math.inf
TOKENS = [1, 0, 2, 1]  # of log-probability near -1.4, -0.4, -2.4, -1.4
FAR = 1e4


def weights_of(
    importance: ImportanceConfig,
    log_ratios: list[float],
    tokens: list[int] | None = None,
    logits: tuple[float, ...] = (1.0, 0.0, -1.0),
) -> tuple[list[float], Any]:
    """The weight of each token, read off its own gradient row, and the update's ratio sums. The
    gradient is checked to be finite, once with each sign of the advantage."""
    tokens = TOKENS if tokens is None else tokens
    model = Unigram(list(logits), torch.float32)
    own = torch.log_softmax(model.logits_V.detach(), -1)[tokens].tolist()
    behaviour = [p - r for p, r in zip(own, log_ratios, strict=True)]
    row = ScoredTokens("a", 0, None, [0, *tokens], [0] + [1] * len(tokens), [0.0, *behaviour])
    scorer = Scorer(model, 1.0, ObjectiveConfig(importance=importance))
    for advantage in (1.0, -1.0):
        score = scorer([row], [advantage])
        assert score is not None
        score.policy.backward()
        assert model.logits_V.grad is not None
        assert model.logits_V.grad.dtype == torch.float32
        assert torch.isfinite(model.logits_V.grad).all()
        model.logits_V.grad = None
    assert scorer.importance is not None
    ratios = scorer.importance.take()
    logprobs = torch.tensor(own)
    packed = SimpleNamespace(sums=lambda values: values.sum().expand(len(values)))
    weights = scorer.importance.weights([row], packed, logprobs, measure=False)  # pyright: ignore[reportArgumentType]
    assert weights.dtype == torch.float32
    return weights.tolist(), ratios


def correction(name: str, level: str) -> ImportanceConfig:
    weights = offpolicy.importance(ScheduleConfig(correction=name, correction_level=level))
    assert weights is not None
    return weights


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tis", [1.0, 2.0, 0.0, 1.5]),
        ("icepop", [1.0, 0.0, 0.0, 1.5]),
        ("decoupled_ppo", [1.0, 0.0, 0.0, 1.5]),
    ],
)
def test_a_token_far_off_leaves_its_neighbours_alone(name, expected):
    found, ratios = weights_of(correction(name, "token"), [0.0, FAR, -FAR, math.log(1.5)])
    assert found == pytest.approx(expected, rel=1e-6)
    assert ratios.outside == 2 * {"tis": 1, "icepop": 2, "decoupled_ppo": 1}[name]
    assert ratios.largest == pytest.approx(math.exp(20.0))


@pytest.mark.parametrize("name", ["tis", "icepop", "decoupled_ppo"])
@pytest.mark.parametrize(
    ("log_ratios", "product"),
    [
        ([FAR, FAR, FAR, FAR], math.exp(20.0)),
        ([-FAR, -FAR, -FAR, -FAR], 0.0),
        ([FAR, -FAR, FAR, -FAR], 1.0),  # bounded only once it is summed
        ([FAR, -FAR, math.log(1.25), 0.0], 1.25),
    ],
)
def test_a_trajectorys_product_is_bounded_as_a_whole(name, log_ratios, product):
    found, ratios = weights_of(correction(name, "sequence"), log_ratios)
    low, high = {"tis": (0.0, 2.0), "icepop": (0.5, 5.0), "decoupled_ppo": (0.0, 5.0)}[name]
    inside = low <= product <= high
    expected = min(product, high) if name == "tis" else product if inside else 0.0
    assert found == pytest.approx([expected] * 4, rel=1e-6)
    assert ratios.largest == pytest.approx(product, rel=1e-6)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("name", "expected"), [("tis", 2.0), ("icepop", 0), ("decoupled_ppo", 0)])
def test_a_token_that_the_engine_could_not_make(name, expected, level):
    """Its behaviour log-probability is -inf."""
    found, _ = weights_of(correction(name, level), [0.0, INFINITE, 0.0, 0.0])
    alone = [1.0, expected, 1.0, 1.0]
    assert found == pytest.approx(alone if level == "token" else [expected] * 4)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("name", ["tis", "icepop", "decoupled_ppo"])
@pytest.mark.parametrize("engine", [-1.0, -INFINITE])
def test_a_token_that_the_learner_cannot_make_has_weight_0(name, level, engine):
    """Whether or not the engine could: 0 / 0 is no number, and 0 x inf none either. Another token
    of the same trajectory is one that the engine could not make."""
    importance = correction(name, level)
    model = Unigram([0.0, 0.0, -INFINITE], torch.float32)
    half = math.log(0.5)
    row = ScoredTokens("a", 0, None, [0, 0, 2, 1], [0, 1, 1, 1], [0.0, half, engine, -INFINITE])
    score = Scorer(model, 1.0, ObjectiveConfig(importance=importance))([row], [1.0])
    assert score is not None
    assert math.isfinite(score.policy.item())
    score.policy.backward()
    assert model.logits_V.grad is not None
    last = 2.0 if name == "tis" else 0.0  # token 1
    weights = [0.0, 0.0] if level == "sequence" else [1.0, last]
    expected = [0.5 * weights[0] - 0.5 * weights[1], 0.5 * weights[1] - 0.5 * weights[0], 0.0]
    assert model.logits_V.grad.tolist() == pytest.approx(expected, abs=1e-6)


def test_the_product_of_thousands_of_tokens_is_right():
    """Float32 would lose the third digit of its logarithm."""
    count = 8000
    drift = [2.5 + 0.75 * math.sin(i) for i in range(count)]
    tokens = list(itertools.islice(itertools.cycle(TOKENS), count))
    log_ratios = [d if i % 2 else -d + 1e-4 for i, d in enumerate(drift)]
    importance = ImportanceConfig("truncate", "sequence", None, 1e6)
    found, ratios = weights_of(importance, log_ratios, tokens)
    assert ratios.tokens == 2 * count
    assert found == pytest.approx([math.exp(math.fsum(log_ratios))] * count, rel=1e-6)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("name", ["tis", "icepop", "decoupled_ppo"])
def test_thousands_of_tokens_that_all_drifted_one_way(name, level):
    for sign in (1.0, -1.0):
        found, _ = weights_of(correction(name, level), [sign * 3.0] * 4000, TOKENS * 1000)
        assert max(found) <= 2.0
