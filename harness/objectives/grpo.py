"""GRPO: what a trajectory's score gradient is weighted with (math.md sections 1, 2 and 4).

Torch-free: advantages and normalisers are a few float64 numbers that the schedule's side computes
once, whatever the schedule, so that no schedule can differ in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.config import ObjectiveConfig
from harness.objectives.estimators import AGGREGATIONS, ESTIMATORS, centred, deviation
from harness.objectives.whole import whole_trajectories
from harness.protocols import Group, Trajectory, UsageError

LIMITS = ("token_limit", "context_limit", "turn_limit", "time_limit")


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
        self._overlong = config.overlong
        self._filters = config.dynamic_sampling == "filter"
        kl_in_loss = config.kl.coefficient > 0.0 and config.kl.place == "loss"
        self.regularised = kl_in_loss or config.entropy.coefficient > 0.0
        self.whole = next(whole_trajectories(config), None) is not None
        """Whether a token's weight depends on all of its trajectory, rewritten or not."""

    def advantages(self, rewards_G: Sequence[float]) -> list[float]:
        """One advantage per trajectory. Degenerate means max == min, never a small deviation; then,
        and in a group too small for the estimator, all are exactly 0 (math.md section 2)."""
        if not all(math.isfinite(r) for r in rewards_G):
            raise ValueError(f"rewards {list(rewards_G)}: a non-finite reward must be lost earlier")
        small = len(rewards_G) < self._estimator.smallest_group
        if small or max(rewards_G) == min(rewards_G):
            return [0.0] * len(rewards_G)
        return self._estimator.advantages(rewards_G, self._epsilon)

    def _rewards(self, group: Group) -> dict[str, float]:
        """Trajectory id -> reward of those whose reward belongs to the group's statistics."""
        rewards = {}
        for t in group.trajectories:
            if t.reward is None:
                raise ValueError(f"group {group.group}: closed with a reward missing")
            if self._overlong.in_group_mean or self.enters(t):
                rewards[t.trajectory_id] = t.reward
        return rewards

    def _entering(self, group: Group) -> dict[str, tuple[Trajectory, float]]:
        """Trajectory id -> (trajectory, advantage) of those that a closed group trains on."""
        rewards = self._rewards(group)
        values = self.advantages(list(rewards.values())) if rewards else []
        known = dict(zip(rewards, values, strict=True))
        kept = (t for t in group.trajectories if self.enters(t))
        return {t.trajectory_id: (t, known[t.trajectory_id]) for t in kept}

    def degenerate(self, group: Group) -> bool:
        """Whether the group has no policy term."""
        return not any(a for _, a in self._entering(group).values())

    def coefficients(self, group: Group) -> dict[str, tuple[Trajectory, float]]:
        """Trajectory id -> (trajectory, advantage) of what the group adds to the update."""
        entering = self._entering(group)
        if any(a for _, a in entering.values()) or (self.regularised and not self._filters):
            return entering
        return {}

    def enters(self, trajectory: Trajectory) -> bool:
        """Whether the update trains on this trajectory, whatever its reward: not under
        `overlong.mask` where a limit ended it (math.md section 4, overlong filtering)."""
        return not self._overlong.mask or trajectory.end not in LIMITS

    def matters(self, advantage: float) -> bool:
        """Whether a trajectory of this advantage has a gradient."""
        return self.regularised or advantage != 0.0

    def normaliser(self, groups: Sequence[Group]) -> float:
        """Z, known when every group is closed. Tokens and sequences of all surviving trajectories
        count, degenerate groups included (math.md section 2), but for what `dynamic_sampling` and
        `overlong` take out. Never 0."""
        groups = self._sampled(groups)
        counted = self._overlong.in_normaliser
        kept = [t for g in groups for t in g.trajectories if counted or self.enters(t)]
        tokens = sum(t.action_tokens for t in kept)
        base = self._aggregation.normaliser(tokens, len(kept), self._constant)
        return max(1.0, float(base)) * self._batch_scale(groups)

    def _sampled(self, groups: Sequence[Group]) -> Sequence[Group]:
        """The groups that belong to the batch: without the degenerate ones where those are
        filtered."""
        return [g for g in groups if not self.degenerate(g)] if self._filters else groups

    def _batch_scale(self, groups: Sequence[Group]) -> float:
        """The late scalar of `batch_std`; 1 for every other estimator."""
        if not self._estimator.batch_scale:
            return 1.0
        rewards = [list(self._rewards(g).values()) for g in groups]
        centred_B = [a for rewards_G in rewards if rewards_G for a in centred(rewards_G, 0.0)]
        return deviation(centred_B) + self._epsilon if centred_B else 1.0
