"""Which cores engine and learner are pinned to, of those that this process may use."""

from __future__ import annotations

import os

from harness.config import Config
from harness.protocols import UsageError


def cores(config: Config) -> tuple[list[int] | None, list[int] | None]:
    """(engine's cores, learner's cores) where cluster.pin_cores asks for disjoint ones. Raises
    UsageError where there are too few: a container or a job may have got any part of a machine."""
    if not config.cluster.pin_cores:
        return None, None
    if not hasattr(os, "sched_getaffinity"):
        raise UsageError("cluster.pin_cores=true: this system cannot pin; take false")
    there = sorted(os.sched_getaffinity(0))
    engine, learner = config.schedule.engine_devices, config.schedule.learner_devices
    if engine + learner > len(there):
        names = ", ".join(map(str, there))
        raise UsageError(
            f"cluster.pin_cores=true: schedule.engine_devices={engine} and "
            f"schedule.learner_devices={learner} need {engine + learner} cores, there is {names}; "
            "take fewer devices, or cluster.pin_cores=false"
        )
    return there[:engine], there[engine : engine + learner]
