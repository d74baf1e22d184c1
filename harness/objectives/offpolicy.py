"""Corrections for stale data: the importance weights that `schedule.correction` stands for.

Source: math.md section 7; docs/asynchronous.md has the formulas and the peers' names. Torch-free:
the weights themselves are computed where the gradient is (harness/learner/scoring.py). A correction
is a detached weight of a token from the ratio proximal / behaviour: the proximal policy is the
learner's version at the update, the behaviour policy whatever version sampled the token. With one
optimizer step per batch the ratio to the proximal policy is 1 in value, so no clip is active and
the surrogate's gradient is weight x advantage x gradient of log pi, whichever correction it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from harness.config import Config, ImportanceConfig, ObjectiveConfig, ScheduleConfig
from harness.protocols import UsageError

_FRESH = ("sync", "stream")  # schedules that train on fresh trajectories only


@dataclass(frozen=True)
class Correction:
    """`kind` is that of the importance weights; `low` and `high` are the bounds where none are
    given (None: the correction has no such bound), `source` says whose they are."""

    kind: str
    low: float | None
    high: float | None
    why: str
    source: str


CORRECTIONS: dict[str, Correction] = {
    "tis": Correction(
        "truncate", None, 2.0, "min(ratio, high)",
        "truncated importance sampling, https://fengyao.notion.site/off-policy-rl; verl's "
        "rollout_is_threshold and SkyRL's token_tis_ratio_clip_high are 2.0",
    ),
    "icepop": Correction(
        "mask", 0.5, 5.0, "the ratio inside [low, high], 0 outside",
        "IcePop, https://ringtech.notion.site/icepop; verl writes the band 0.5_5.0, NeMo RL's "
        "example the same two numbers",
    ),
    "decoupled_ppo": Correction(
        "mask", None, 5.0, "the ratio up to high, 0 above",
        "the decoupled objective of AReaL, arXiv 2505.24298; its cap is 5.0, and what exceeds it "
        "is masked",
    ),
}  # fmt: skip
NAMES = (None, "none", *CORRECTIONS)


def importance(schedule: ScheduleConfig) -> ImportanceConfig | None:
    """The importance weights that a schedule's correction stands for; None where it has none."""
    if schedule.correction in (None, "none"):
        return None
    correction = CORRECTIONS[schedule.correction]
    low, high = schedule.correction_low, schedule.correction_high
    return ImportanceConfig(
        kind=correction.kind,
        level=schedule.correction_level,
        low=correction.low if low is None else low,
        high=correction.high if high is None else high,
    )


def effective(config: Config) -> ObjectiveConfig:
    """The objective that the learner maximises: the run's own, with the schedule's correction as
    its importance weights."""
    weights = importance(config.schedule)
    if weights is None:
        return config.objective
    return replace(config.objective, importance=weights)


def check(config: Config) -> None:
    """Raises UsageError, one line, for a correction that contradicts something."""
    schedule = config.schedule
    if schedule.name in _FRESH:
        for key, value in _given(schedule):
            raise UsageError(
                f"schedule.{key}={value}: schedule={schedule.name} trains on fresh "
                "trajectories only; leave it unset"
            )
        return
    _bounds(schedule)
    if importance(schedule) is not None and config.objective.importance.kind != "none":
        raise UsageError(
            f"schedule.correction={schedule.correction}: sets the importance weights, and "
            f"objective.importance.kind={config.objective.importance.kind} sets them too; "
            "take one of the two"
        )


def _given(schedule: ScheduleConfig) -> Iterator[tuple[str, object]]:
    """What is set of a correction and its settings."""
    defaults = ScheduleConfig()
    for key in ("correction", "correction_level", "correction_low", "correction_high"):
        value = getattr(schedule, key)
        if value != getattr(defaults, key):
            yield key, value


def _bounds(schedule: ScheduleConfig) -> None:
    weights = importance(schedule)
    for key, value in _given(schedule):
        if key == "correction":
            continue
        readers = [n for n, c in CORRECTIONS.items() if key != "correction_low" or c.low]
        if schedule.correction not in readers:
            raise UsageError(
                f"schedule.{key}={value}: schedule.correction={schedule.correction or 'null'} does "
                f"not read it; leave it unset, or take schedule.correction={' or '.join(readers)}"
            )
    low, high = (weights.low, weights.high) if weights else (None, None)
    if low is not None and high is not None and low >= high:
        raise UsageError(
            f"schedule.correction_low={low}: not below schedule.correction_high={high}; "
            "the band is [low, high]"
        )


def markdown() -> Iterator[str]:
    """The lines of docs/exactness.md about corrections."""
    yield from PREFACE.splitlines()
    yield "| `schedule.correction` | `objective.importance.kind` | weight | `low` | `high` | from |"
    yield "|---|---|---|---|---|---|"
    for name, c in CORRECTIONS.items():
        low = "" if c.low is None else f"{c.low:g}"
        yield f"| `{name}` | `{c.kind}` | {c.why} | {low} | {c.high:g} | {c.source} |"


PREFACE = """
## Corrections of stale data

Schedules that train on stale data take `schedule.correction` ([asynchronous.md](asynchronous.md)).
It stands for importance weights of the level `schedule.correction_level`, so that the rows of
`objective.importance` above hold for it: a weight is known at the end of its trajectory and does
not depend on a reward. `schedule.correction_low` and `schedule.correction_high` replace the bounds.

"""
