"""Which cores engine and learner are pinned to, of those that this process may use."""

from __future__ import annotations

import os

from harness.cluster.devices import Devices, devices
from harness.config import Config
from harness.protocols import UsageError


def cores(config: Config) -> tuple[list[int] | None, list[int] | None]:
    """(engine's cores, learner's cores) where cluster.pin_cores asks for them: disjoint ones, or
    the same ones under placement=colocated. Raises UsageError where there are too few: a container
    or a job may have got any part of a machine."""
    if not config.cluster.pin_cores:
        return None, None
    if not hasattr(os, "sched_getaffinity"):
        raise UsageError("cluster.pin_cores=true: this system cannot pin; take false")
    there = sorted(os.sched_getaffinity(0))
    wanted = devices(config)
    if wanted.total > len(there):
        names = ", ".join(map(str, there))
        shared = " (the same ones)" if wanted.placement == "colocated" else ""
        raise UsageError(
            f"cluster.pin_cores=true: schedule.engine_devices={wanted.engine} and "
            f"schedule.learner_devices={wanted.learner}{shared}{_teacher(wanted)} need "
            f"{wanted.total} cores, there "
            f"is {names}; take fewer devices, or cluster.pin_cores=false"
        )
    if wanted.placement == "colocated":
        return there[: wanted.engine], there[: wanted.engine]
    both = wanted.engine + wanted.learner
    return there[: wanted.engine], there[wanted.engine : both]


def teacher_cores(config: Config) -> list[int] | None:
    """The teacher's own, after those of `cores`; None where nothing is pinned."""
    if cores(config) == (None, None):
        return None
    wanted = devices(config)
    there = sorted(os.sched_getaffinity(0))
    return there[wanted.total - wanted.teacher : wanted.total]


def _teacher(wanted: Devices) -> str:
    return f" and teacher.devices={wanted.teacher}" if wanted.teacher else ""
