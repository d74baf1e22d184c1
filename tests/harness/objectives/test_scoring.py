"""Importance weights and KL terms where numbers are extreme, and what a learner is sent."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch

from harness.config import ImportanceConfig, KlConfig, ObjectiveConfig, OverlongConfig
from harness.learner.client import ScoredTokens, TorchLearnerClient, scored
from harness.learner.scoring import Scorer
from harness.objectives.grpo import LIMITS, Grpo
from harness.parts import learner_options
from harness.protocols import EndReason, Group, Trajectory
from tests.harness.objectives.literal import Unigram

# Probabilities 0.5, 0.25, 0.25 and 0.
LOGITS = [math.log(2.0), 0.0, 0.0, -math.inf]
ROW = [9, 0, 1, 2]  # an unscored token, then tokens of log-probability log 1/2, log 1/4, log 1/4


def row(tokens: list[int], behaviour: list[float] | None = None) -> ScoredTokens:
    mask = [0, *[1] * (len(tokens) - 1)]
    return ScoredTokens("a", 0, None, tokens, mask, behaviour and [0.0, *behaviour])


def gradient(objective: ObjectiveConfig, scored_row: ScoredTokens, **models: Any) -> list[float]:
    """d policy / d logits of one row with coefficient 1."""
    model = Unigram(LOGITS, torch.float64)
    score = Scorer(model, 1.0, objective, **models)([scored_row], [1.0])
    assert score is not None
    assert math.isfinite(score.policy.item())
    score.policy.backward()
    assert model.logits_V.grad is not None
    return model.logits_V.grad.tolist()


def by_hand(weights: list[float]) -> list[float]:
    """Sum over the tokens of ROW of weight x (one-hot - probabilities)."""
    probabilities = [0.5, 0.25, 0.25, 0.0]
    return [
        sum(w * ((y == v) - probabilities[v]) for w, y in zip(weights, ROW[1:], strict=True))
        for v in range(4)
    ]


HALF, QUARTER = math.log(0.5), math.log(0.25)


@pytest.mark.parametrize(
    ("importance", "behaviour", "weights"),
    [
        # ratios 1, 2 and 1/2
        (ImportanceConfig("truncate", "token", None, 1.5), (0, -1, 1), [1.0, 1.5, 0.5]),
        (ImportanceConfig("mask", "token", 0.6, 3.0), (0, -1, 1), [1.0, 2.0, 0.0]),
        (ImportanceConfig("mask", "token", None, 1.5), (0, -1, 1), [1.0, 0.0, 0.5]),
        # a product of 2 for the trajectory
        (ImportanceConfig("truncate", "sequence", None, 9.0), (0, -1, 0), [2.0, 2.0, 2.0]),
        (ImportanceConfig("mask", "sequence", 0.5, 1.5), (0, -1, 0), [0.0, 0.0, 0.0]),
        (ImportanceConfig("mask", "sequence", 0.5, 2.5), (0, -1, 0), [2.0, 2.0, 2.0]),
        # e^7000 overflows and e^-7000 vanishes
        (ImportanceConfig("truncate", "token", None, 2.0), (0, -1e4, 1e4), [1.0, 2.0, 0.0]),
        (ImportanceConfig("mask", "token", 0.5, 2.0), (0, -1e4, 1e4), [1.0, 0.0, 0.0]),
    ],
)
def test_importance_weights_by_hand(importance, behaviour, weights):
    """`behaviour`: powers of two by which the engine's probabilities exceed the learner's."""
    engine = [
        own + power * math.log(2.0)
        for own, power in zip((HALF, QUARTER, QUARTER), behaviour, strict=True)
    ]
    got = gradient(ObjectiveConfig(importance=importance), row(ROW, engine))
    assert got == pytest.approx(by_hand(weights), abs=1e-12)


def test_a_masked_token_stays_in_the_length():
    """Two of three tokens enter, each with weight 1/3."""
    objective = ObjectiveConfig(
        aggregation="seq_mean_token_mean", importance=ImportanceConfig("mask", "token", 0.6, 1.5)
    )
    got = gradient(objective, row(ROW, [HALF, QUARTER, QUARTER + 1.0]))
    assert got == pytest.approx(by_hand([1 / 3, 1 / 3, 0.0]), abs=1e-12)


def test_a_token_that_the_policy_cannot_make_is_masked_and_not_nan():
    """Its log-probability is -inf, its weight 0."""
    objective = ObjectiveConfig(importance=ImportanceConfig("mask", "token", 0.5, 2.0))
    got = gradient(objective, row([9, 0, 3], [HALF, -1.0]))
    assert got == pytest.approx([0.5, -0.25, -0.25, 0.0], abs=1e-12)


def test_importance_weights_without_the_engines_numbers_are_an_error():
    objective = ObjectiveConfig(importance=ImportanceConfig("truncate", "token", None, 2.0))
    with pytest.raises(ValueError, match=r"shorter|longer"):
        gradient(objective, row(ROW))


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_kl_terms_stay_finite_where_policy_and_reference_are_far_apart(estimator):
    """The reference gives the token e^1000 times the policy's probability."""
    objective = ObjectiveConfig(kl=KlConfig(0.1, estimator, "loss"))
    model, reference = (Unigram(logits, torch.float64) for logits in ([1000.0, 0.0], [0.0, 0.0]))
    score = Scorer(model, 1.0, objective, reference)([row([0, 1])], [1.0])
    assert score is not None
    assert score.always is not None
    score.always.backward()
    assert model.logits_V.grad is not None
    assert math.isfinite(score.always.item())
    assert torch.isfinite(model.logits_V.grad).all()


def test_the_kl_of_a_trajectory_by_hand():
    objective = ObjectiveConfig(kl=KlConfig(0.1, "k1", "reward"))
    scorer = Scorer(
        Unigram(LOGITS, torch.float64), 1.0, objective, Unigram([0.0] * 4, torch.float64)
    )
    # log 1/2 + log 1/4 + log 1/4 against three times log 1/4
    assert scorer.reference_kl(row(ROW)) == pytest.approx(math.log(2.0), rel=1e-12)
    assert scorer.reference_kl(ScoredTokens("a", 0, None, [1, 2], [0, 0])) == 0.0
    assert not scorer.regularised


def trajectory(end: EndReason, reward: float = 1.0) -> Trajectory:
    return Trajectory(
        end, "t", "easy", 0, 0, 0, tokens_T=[1, 2, 3], action_mask_T=[0, 1, 1],
        behaviour_logprobs_T=[0.0, -1.0, -2.0], reward=reward, end=end,
    )  # fmt: skip


def test_the_engines_numbers_are_sent_only_when_they_are_needed(configure, tmp_path):
    truncated = {"objective.importance.kind": "truncate", "objective.importance.high": 2.0}
    plain, weighted = [
        TorchLearnerClient(learner_options(configure(o), tmp_path, tmp_path), threads=1)
        for o in ({}, truncated)
    ]
    (sent,) = plain._scored([trajectory("submit")])
    assert sent.behaviour_logprobs_T is None
    (sent,) = weighted._scored([trajectory("submit")])
    assert sent == scored(trajectory("submit"), behaviour=True)
    assert sent.behaviour_logprobs_T == [0.0, -1.0, -2.0]


def test_overlong_masking_knows_every_way_that_a_trajectory_ends():
    assert {*LIMITS, "submit"} == set(get_args(EndReason))
    masking = Grpo(ObjectiveConfig(overlong=OverlongConfig(mask=True)), 2)
    entering = [end for end in get_args(EndReason) if masking.enters(trajectory(end))]
    assert entering == ["submit"]
    assert all(Grpo(ObjectiveConfig(), 2).enters(trajectory(end)) for end in get_args(EndReason))


def test_a_group_whose_only_spread_is_masked_is_degenerate_without_it():
    group = Group(0, "t", "easy", [trajectory("submit"), trajectory("turn_limit", 0.0)])
    group.trajectories.append(trajectory("submit"))
    alone = OverlongConfig(mask=True, in_group_mean=False)
    together = OverlongConfig(mask=True, in_group_mean=True)
    assert Grpo(ObjectiveConfig(overlong=alone), 3).degenerate(group)
    assert not Grpo(ObjectiveConfig(overlong=together), 3).degenerate(group)
