"""What makes a token's weight depend on all of its trajectory. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

from harness.config import ObjectiveConfig


def whole_trajectories(objective: ObjectiveConfig) -> Iterator[str]:
    """Why no part of a trajectory has a gradient of its own under this objective, each with a way
    out."""
    weights, clip = objective.importance, objective.clip
    if objective.name == "opd" and objective.discount:
        yield (
            f"objective.discount={objective.discount}: a token's weight needs the turns that "
            "follow, and schedule.release=turn does not wait for them; take objective.discount=0"
        )
    if weights.kind != "none" and weights.level == "sequence":
        yield (
            "objective.importance.level=sequence: a token's weight needs all of its trajectory's; "
            "take objective.importance.level=token"
        )
    if weights.kind != "none" and (clip.kind, clip.form) == ("gspo", "sequence"):
        yield (
            "objective.clip.form=sequence: a token's weight is the mean of its trajectory's; take "
            "objective.clip.form=token"
        )
