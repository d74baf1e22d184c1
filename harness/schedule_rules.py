"""Which settings a schedule reads, and which contradict it. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

from harness.config import Config, ScheduleConfig
from harness.objectives import whole
from harness.protocols import UsageError

_KEYS = (
    "max_staleness", "partial_rollout", "queue", "stale_groups", "concurrent_trajectories"
)  # fmt: skip


def check(config: Config) -> None:
    """Raises UsageError, one line, for the first contradiction."""
    _release(config.schedule)
    if config.schedule.release == "turn":
        for line in whole_trajectories(config):
            raise UsageError(f"{line}, or schedule.release=submit")
    _asynchronous(config)


def _release(schedule: ScheduleConfig) -> None:
    name, release = schedule.name, schedule.release
    shown = "null" if release is None else release
    if name == "sync" and release != "batch":
        raise UsageError(
            f"schedule.release={shown}: schedule=sync releases batch; "
            "take schedule=stream for the other rungs"
        )
    if name in ("one_step_off", "async") and release is not None:
        raise UsageError(
            f"schedule.release={shown}: schedule={name} has no ladder; leave it null, "
            "or take schedule=stream"
        )
    if name == "stream" and release is None:
        raise UsageError(
            "schedule.release=null: schedule=stream needs a rung of the ladder; "
            "take schedule.release=reward"
        )


def whole_trajectories(config: Config) -> Iterator[str]:
    """Why turns have no gradient of their own under these settings, each with a way out."""
    learner = config.learner
    if learner.ranks > 1 and learner.name != "simulated":  # on paper alone: nobody has built it
        yield (
            f"learner.ranks={learner.ranks}: a running trajectory's turns stay in one process, and "
            "which one takes the trajectory is known at its end; take learner.ranks=1"
        )
    if learner.device != "cpu":
        yield (
            f"learner.device={learner.device}: turn gradients were never run on a GPU; take "
            "learner.device=cpu"
        )
    if learner.gradient_checkpointing:
        yield (
            "learner.gradient_checkpointing=true: it drops the keys and values of earlier turns; "
            "take false"
        )
    if learner.packing == "packed":
        yield (
            "learner.packing=packed: a turn is a pass of its own, and nothing lies beside it; take "
            "padded"
        )
    if learner.logits_tokens:
        yield (
            f"learner.logits_tokens={learner.logits_tokens}: a turn's logits are few, and held; "
            "take 0"
        )
    if learner.dtype == "bfloat16":
        yield ("learner.dtype=bfloat16: turn gradients were never checked in it; take float32")
    yield from whole.whole_trajectories(config.objective)


def _overlapping(config: Config) -> None:
    """What needs the rollouts of an update and its learning one after the other."""
    name, rollout = config.schedule.name, config.rollout
    if config.parity.every:
        raise UsageError(
            f"parity.every={config.parity.every}: schedule={name} rolls out while the learner "
            "works, and a check stops the clock of the budget; take schedule=stream, or 0"
        )
    if config.objective.kl.coefficient > 0 and config.objective.kl.place == "reward":
        raise UsageError(
            f"objective.kl.place=reward: under schedule={name} the learner's weights change while "
            "rewards are still made, and a reward would depend on when; take "
            "objective.kl.place=loss"
        )
    room = config.schedule.concurrent_trajectories
    if room is not None and room < rollout.group_size:
        raise UsageError(
            f"schedule.concurrent_trajectories={room}: less than one group of "
            f"rollout.group_size={rollout.group_size}, which roll out together; give at least that"
        )


def _asynchronous(config: Config) -> None:
    """The settings of schedule=async, and that nobody else sets them."""
    schedule = config.schedule
    if schedule.name in ("one_step_off", "async"):
        _overlapping(config)
    if schedule.name == "async":
        if schedule.max_staleness is None:
            raise UsageError(
                "schedule.max_staleness=null: schedule=async needs a bound on the staleness, "
                "in learner versions; 0 is the synchronous schedule (without a correction)"
            )
        return
    if schedule.name not in ("sync", "stream", "one_step_off"):
        return  # somebody's own
    for key in _KEYS:
        value = getattr(schedule, key)
        if value != getattr(ScheduleConfig, key):
            raise UsageError(
                f"schedule.{key}={value}: schedule={schedule.name} does not read it; "
                "leave it unset, or take schedule=async"
            )
