"""Settings of the objective that contradict each other. What they would mean is no question of
streaming; harness.objectives.exactness answers that one."""

from __future__ import annotations

from harness.config import ClipConfig, ImportanceConfig, ObjectiveConfig
from harness.protocols import UsageError

# clip.kind -> the settings it reads; every other one must stay null.
CLIP_SETTINGS: dict[str, tuple[str, ...]] = {
    "none": (),
    "ppo": ("low",),
    "clip_higher": ("low", "high"),
    "dual_clip": ("low", "high", "dual"),
    "gspo": ("low", "high", "form"),
    "cispo": ("bound",),
    "covariance": ("low", "high"),
}


def check(objective: ObjectiveConfig) -> None:
    """Raises UsageError, one line, for the first contradiction."""
    _clip(objective.clip)
    _importance(objective.importance)
    overlong = objective.overlong
    for key in ("in_group_mean", "in_normaliser"):
        if not overlong.mask and not getattr(overlong, key):
            raise UsageError(
                f"objective.overlong.{key}=false: nothing is masked; "
                "set objective.overlong.mask=true"
            )


def _clip(clip: ClipConfig) -> None:
    for key in ("low", "high", "dual", "bound", "form"):
        value = getattr(clip, key)
        if value is not None and key not in CLIP_SETTINGS[clip.kind]:
            takers = [kind for kind, settings in CLIP_SETTINGS.items() if key in settings]
            raise UsageError(
                f"objective.clip.{key}={value}: objective.clip.kind={clip.kind} does not read it; "
                f"leave it null, or take kind {' or '.join(takers)}"
            )
    if clip.kind == "cispo" and clip.bound is None:
        raise UsageError(
            "objective.clip.bound=null: objective.clip.kind=cispo needs its largest ratio, "
            "at least 1; take objective.clip.bound=5"
        )
    if clip.kind == "clip_higher" and clip.high is not None and clip.high < (clip.low or 0.0):
        raise UsageError(
            f"objective.clip.high={clip.high}: below objective.clip.low={clip.low}; "
            "clip_higher wants the larger distance above the ratio 1"
        )


def _importance(importance: ImportanceConfig) -> None:
    kind, low, high = importance.kind, importance.low, importance.high
    if kind == "none" and (low is not None or high is not None):
        key, value = ("low", low) if low is not None else ("high", high)
        raise UsageError(
            f"objective.importance.{key}={value}: objective.importance.kind=none does not read it; "
            "leave it null, or take kind truncate or mask"
        )
    if kind == "truncate" and low is not None:
        raise UsageError(
            f"objective.importance.low={low}: objective.importance.kind=truncate has an upper "
            "bound alone; leave it null, or take kind mask"
        )
    if kind != "none" and high is None:
        raise UsageError(
            f"objective.importance.high=null: objective.importance.kind={kind} needs its largest "
            "ratio, for example objective.importance.high=2"
        )
    if low is not None and high is not None and low >= high:
        raise UsageError(
            f"objective.importance.low={low}: not below objective.importance.high={high}; "
            "the band is [low, high]"
        )
