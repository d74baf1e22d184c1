"""On-policy distillation: the policy's own tokens, weighted by what a teacher thinks of them.

Source: math.md section 5. A token's weight is -(log policy - log teacher), detached, and reaches
the learner with the trajectory; what is decided here is how trajectories are weighted. Without a
task reward that is 1 for each of them, whatever its reward and its group. With one
(`objective.task_weight`) the rewards' advantages weight the policy term, and the distillation is a
reward-independent term beside it: two accumulators, whose scalars are the weighted advantage and 1.
Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.config import Config, ObjectiveConfig
from harness.objectives import offpolicy
from harness.objectives.estimators import ESTIMATORS
from harness.objectives.grpo import Grpo
from harness.protocols import Group, Trajectory, UsageError


class Opd(Grpo):
    """The objective of one run. N, the divisor, is the batch's generated tokens: every surviving
    trajectory has been scored whole."""

    name = "opd"

    def __init__(self, config: ObjectiveConfig, group_size: int) -> None:
        self._task_weight = config.task_weight
        if not self._task_weight:  # no group is compared: it may have any size
            estimator = ESTIMATORS.get(config.estimator)
            group_size = max(group_size, estimator.smallest_group if estimator else 1)
        super().__init__(config, group_size)
        self.regularised = self.regularised or self._task_weight > 0.0

    def degenerate(self, group: Group) -> bool:
        """A group of equal rewards has its distillation all the same."""
        return self._task_weight > 0.0 and super().degenerate(group)

    def coefficients(self, group: Group) -> dict[str, tuple[Trajectory, float]]:
        if not self._task_weight:
            return {t.trajectory_id: (t, 1.0) for t in group.trajectories if self.enters(t)}
        known = super().coefficients(group)
        return {k: (t, self._task_weight * a) for k, (t, a) in known.items()}


def reverse_kl(trajectories: Sequence[Trajectory]) -> float | None:
    """Mean over generated tokens of log policy - log teacher, with the policy that sampled them:
    an unbiased estimate of its reverse KL per token. None where nothing was scored."""
    total, tokens = 0.0, 0
    for t in trajectories:
        if t.teacher is not None:
            own = (b for b, m in zip(t.behaviour_logprobs_T, t.action_mask_T, strict=True) if m)
            total += sum(b - q for b, q in zip(own, t.teacher.logprobs_N, strict=True))
            tokens += len(t.teacher.logprobs_N)
    return total / tokens if tokens else None


def _given(objective: ObjectiveConfig) -> Iterator[tuple[str, float]]:
    for key in ("top_k", "discount", "task_weight"):
        if value := getattr(objective, key):
            yield key, value


def check(config: Config) -> None:
    """Raises UsageError, one line, for settings of distillation that contradict each other."""
    objective = config.objective
    if objective.name != "opd":
        for key, value in _given(objective):
            raise UsageError(
                f"objective.{key}={value}: objective={objective.name} does not read it; leave it "
                "0, or take objective=opd"
            )
        return
    _unread(objective)
    if objective.top_k and config.learner.logits_tokens:
        raise UsageError(
            f"learner.logits_tokens={config.learner.logits_tokens}: objective.top_k="
            f"{objective.top_k} needs whole distributions of a pass; take learner.logits_tokens=0, "
            "or objective.top_k=0"
        )
    weights = offpolicy.effective(config).importance.kind
    if objective.top_k and weights != "none":
        correction = config.schedule.correction
        key, value = ("schedule.correction", correction)
        if objective.importance.kind != "none":
            key, value = "objective.importance.kind", weights
        raise UsageError(
            f"{key}={value}: weights sampled tokens, and objective.top_k={objective.top_k} sums "
            f"over the teacher's; take {key}=none, or objective.top_k=0"
        )


def _unread(objective: ObjectiveConfig) -> None:
    """Settings of the reward's policy term that a distillation does not have."""
    if objective.clip.kind != "none":
        raise UsageError(
            f"objective.clip.kind={objective.clip.kind}: objective=opd does not read it, its ratio "
            "is 1; take objective.clip.kind=none"
        )
    if objective.dynamic_sampling == "filter" and not objective.task_weight:
        raise UsageError(
            "objective.dynamic_sampling=filter: objective=opd compares no rewards; take "
            "objective.dynamic_sampling=none, or objective.task_weight=1"
        )
    if objective.kl.place == "reward" and objective.kl.coefficient and not objective.task_weight:
        raise UsageError(
            "objective.kl.place=reward: objective=opd reads no reward; take "
            "objective.kl.place=loss, or objective.task_weight=1"
        )


def make(config: ObjectiveConfig, group_size: int) -> Grpo:
    """The objective that a configuration names."""
    return (Opd if config.name == "opd" else Grpo)(config, group_size)
