"""Advantage estimators and aggregations of GRPO, each with what streaming needs to know of it.

Source: math.md sections 2 and 4. An estimator is exact under streaming because equal rewards of one
group get equal advantages; an affine one (advantage = slope x reward + offset within the group)
also fits the ledger's affine form. An aggregation is exact because its per-trajectory weight is
known when the trajectory ends and its normaliser is one late scalar.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float], lost_degrees: int = 0) -> float:
    """Standard deviation; population with `lost_degrees` 0, sample with 1."""
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - lost_degrees))


def centred(rewards_G: Sequence[float], epsilon: float) -> list[float]:
    """r - mean; epsilon is not used."""
    centre = mean(rewards_G)
    return [r - centre for r in rewards_G]


def mean_std_population(rewards_G: Sequence[float], epsilon: float) -> list[float]:
    """(r - mean) / (population std + epsilon): the paper's estimator."""
    scale = deviation(rewards_G) + epsilon
    return [a / scale for a in centred(rewards_G, epsilon)]


def mean_std_sample(rewards_G: Sequence[float], epsilon: float) -> list[float]:
    """(r - mean) / (sample std + epsilon)."""
    scale = deviation(rewards_G, lost_degrees=1) + epsilon
    return [a / scale for a in centred(rewards_G, epsilon)]


def leave_one_out(rewards_G: Sequence[float], epsilon: float) -> list[float]:
    """r - mean of the others (RLOO) = G / (G - 1) x (r - mean)."""
    factor = len(rewards_G) / (len(rewards_G) - 1)
    return [factor * a for a in centred(rewards_G, epsilon)]


def leave_one_out_std(rewards_G: Sequence[float], epsilon: float) -> list[float]:
    """(r - mean of the others) / (population std of the others + epsilon). Where the others are all
    equal their std is 0 and the advantage would explode: the group's own std is used there."""
    advantages = []
    for i, reward in enumerate(rewards_G):
        others = [*rewards_G[:i], *rewards_G[i + 1 :]]
        equal = max(others) == min(others)
        scale = deviation(rewards_G if equal else others) + epsilon
        advantages.append((reward - mean(others)) / scale)
    return advantages


@dataclass(frozen=True)
class Estimator:
    """`affine` within a group; `batch_scale`: the advantages are divided by the batch's standard
    deviation of group-centred rewards, a late scalar that joins the normaliser."""

    advantages: Callable[[Sequence[float], float], list[float]]
    affine: bool
    smallest_group: int = 2
    batch_scale: bool = False


ESTIMATORS: dict[str, Estimator] = {
    "mean_std_population": Estimator(mean_std_population, affine=True),
    "mean_std_sample": Estimator(mean_std_sample, affine=True),
    "mean": Estimator(centred, affine=True),
    "leave_one_out": Estimator(leave_one_out, affine=True),
    "leave_one_out_std": Estimator(leave_one_out_std, affine=False, smallest_group=3),
    "batch_std": Estimator(centred, affine=True, batch_scale=True),
}


@dataclass(frozen=True)
class Aggregation:
    """`weight(|o_i|)` multiplies every action token of a trajectory; `normaliser(tokens, sequences,
    constant)` is Z. A trajectory without action tokens adds no gradient and counts as a
    sequence."""

    weight: Callable[[int], float]
    normaliser: Callable[[int, int, float], float]


AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": Aggregation(lambda length: 1.0, lambda tokens, sequences, constant: tokens),
    "seq_mean_token_mean": Aggregation(
        lambda length: 1.0 / max(1, length), lambda tokens, sequences, constant: sequences
    ),
    "seq_mean_token_sum": Aggregation(
        lambda length: 1.0, lambda tokens, sequences, constant: sequences
    ),
    "constant": Aggregation(
        lambda length: 1.0, lambda tokens, sequences, constant: sequences * constant
    ),
}
