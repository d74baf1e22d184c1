"""GRPO: what a trajectory's score gradient is weighted with (math.md sections 1, 2 and 4).

Torch-free: advantages and normalisers are a few float64 numbers that the schedule's side computes
once, whatever the schedule, so that no schedule can differ in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from harness.config import ObjectiveConfig
from harness.protocols import Trajectory, UsageError

Advantages = Callable[[Sequence[float], float], list[float]]


def _mean(rewards_G: Sequence[float]) -> float:
    return math.fsum(rewards_G) / len(rewards_G)


def mean_std_population(rewards_G: Sequence[float], epsilon: float) -> list[float]:
    """(r - mean) / (population std + epsilon): the paper's estimator."""
    centre = _mean(rewards_G)
    deviation = math.sqrt(math.fsum((r - centre) ** 2 for r in rewards_G) / len(rewards_G))
    return [(r - centre) / (deviation + epsilon) for r in rewards_G]


def mean_only(rewards_G: Sequence[float], epsilon: float) -> list[float]:
    """r - mean (Dr. GRPO); epsilon is not used."""
    centre = _mean(rewards_G)
    return [r - centre for r in rewards_G]


ESTIMATORS: dict[str, Advantages] = {
    "mean_std_population": mean_std_population,
    "mean": mean_only,
}
AGGREGATIONS: tuple[Literal["token_mean"], ...] = ("token_mean",)


class Grpo:
    """The objective of one run: advantages of a group, normaliser Z of a batch."""

    name = "grpo"

    def __init__(self, config: ObjectiveConfig, group_size: int) -> None:
        if config.estimator not in ESTIMATORS:
            raise UsageError(
                f"objective.estimator={config.estimator}: not one of {', '.join(ESTIMATORS)}"
            )
        if config.aggregation not in AGGREGATIONS:
            raise UsageError(
                f"objective.aggregation={config.aggregation}: not one of {', '.join(AGGREGATIONS)}"
            )
        if group_size < 2:
            raise UsageError(
                f"rollout.group_size={group_size}: a group of one has no advantage; use 2 or more"
            )
        self._estimate = ESTIMATORS[config.estimator]
        self._epsilon = config.epsilon

    def advantages(self, rewards_G: Sequence[float]) -> list[float]:
        """One advantage per trajectory. Degenerate means max == min, never a small deviation; then,
        and in a group reduced to one trajectory, all are exactly 0 (math.md section 2)."""
        if not all(math.isfinite(r) for r in rewards_G):
            raise ValueError(f"rewards {list(rewards_G)}: a non-finite reward must be lost earlier")
        if len(rewards_G) < 2 or max(rewards_G) == min(rewards_G):
            return [0.0] * len(rewards_G)
        return self._estimate(rewards_G, self._epsilon)

    def normaliser(self, trajectories: Sequence[Trajectory]) -> float:
        """Z of token-mean: the action tokens of all surviving trajectories, degenerate groups
        included (math.md section 2). A trajectory without action tokens adds nothing. At least
        1."""
        return float(max(1, sum(t.action_tokens for t in trajectories)))
