"""GRPO: what a trajectory's score gradient is weighted with (math.md sections 1, 2 and 4).

Torch-free: advantages and normalisers are a few float64 numbers that the schedule's side computes
once, whatever the schedule, so that no schedule can differ in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.config import ObjectiveConfig
from harness.objectives.estimators import AGGREGATIONS, ESTIMATORS, centred, deviation
from harness.protocols import Group, Trajectory, UsageError


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
        self._estimator = ESTIMATORS[config.estimator]
        self._aggregation = AGGREGATIONS[config.aggregation]
        if group_size < self._estimator.smallest_group:
            raise UsageError(
                f"rollout.group_size={group_size}: objective.estimator={config.estimator} needs "
                f"groups of {self._estimator.smallest_group} or more"
            )
        self._epsilon = config.epsilon
        self._constant = float(config.constant_tokens)
        self.regularised = False

    def advantages(self, rewards_G: Sequence[float]) -> list[float]:
        """One advantage per trajectory. Degenerate means max == min, never a small deviation; then,
        and in a group too small for the estimator, all are exactly 0 (math.md section 2)."""
        if not all(math.isfinite(r) for r in rewards_G):
            raise ValueError(f"rewards {list(rewards_G)}: a non-finite reward must be lost earlier")
        small = len(rewards_G) < self._estimator.smallest_group
        if small or max(rewards_G) == min(rewards_G):
            return [0.0] * len(rewards_G)
        return self._estimator.advantages(rewards_G, self._epsilon)

    def _of(self, group: Group) -> list[float]:
        """The advantages of a closed group's survivors, in their order."""
        rewards_G = [t.reward for t in group.trajectories if t.reward is not None]
        if len(rewards_G) != len(group.trajectories):
            raise ValueError(f"group {group.group}: closed with a reward missing")
        return self.advantages(rewards_G) if rewards_G else []

    def degenerate(self, group: Group) -> bool:
        """Whether the group has no policy term."""
        return not any(self._of(group))

    def coefficients(self, group: Group) -> dict[str, tuple[Trajectory, float]]:
        """Trajectory id -> (trajectory, advantage) of what the group adds to the update."""
        values = self._of(group)
        if not (self.regularised or any(values)):
            return {}
        pairs = zip(group.trajectories, values, strict=True)
        return {t.trajectory_id: (t, a) for t, a in pairs if self.enters(t)}

    def enters(self, trajectory: Trajectory) -> bool:
        """Whether the update trains on this trajectory, whatever its reward."""
        return True

    def normaliser(self, groups: Sequence[Group]) -> float:
        """Z, known when every group is closed. Tokens and sequences of all surviving trajectories
        count, degenerate groups included (math.md section 2). Never 0."""
        kept = [t for g in groups for t in g.trajectories]
        tokens = sum(t.action_tokens for t in kept)
        base = self._aggregation.normaliser(tokens, len(kept), self._constant)
        return max(1.0, float(base)) * self._batch_scale(groups)

    def _batch_scale(self, groups: Sequence[Group]) -> float:
        """The late scalar of `batch_std`; 1 for every other estimator."""
        if not self._estimator.batch_scale:
            return 1.0
        rewards = [[t.reward for t in g.trajectories if t.reward is not None] for g in groups]
        centred_B = [a for rewards_G in rewards if rewards_G for a in centred(rewards_G, 0.0)]
        return deviation(centred_B) + self._epsilon if centred_B else 1.0
