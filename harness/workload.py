"""Transforms of a recording's timings: the same trajectories under other circumstances.

A workload changes how long sandboxes, tool calls and verifiers took, and nothing else; every draw
is a function of the seed and the trajectory's (or group's) place in the recording.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.protocols import Trajectory

Batches = Mapping[int, Mapping[int, Sequence[Trajectory]]]  # batch -> group -> trajectories

VERIFICATION_S = 4.0  # median
VERIFICATION_SIGMA = 0.25  # of its logarithm: nine in ten between 2.7 and 6.0 s
SLOWEST_GROUP = 8.0
TOOL_CALL_S = 2.0  # median: a test file of a repository, not a look into one of its files
TOOL_CALL_SIGMA = 1.0  # nine in ten between 0.4 and 10 s


@dataclass(frozen=True)
class Workload:
    """`says` is printed with every figure; `change(trajectory, batch, place of its group in the
    batch, groups, seed)` gives the changed trajectory."""

    says: str
    change: Callable[[Trajectory, int, int, int, int], Trajectory]


def _recorded(trajectory: Trajectory, batch: int, place: int, count: int, seed: int) -> Trajectory:
    return trajectory


def _long_verification(
    trajectory: Trajectory, batch: int, place: int, count: int, seed: int
) -> Trajectory:
    if trajectory.end != "submit":
        return trajectory  # never verified
    draw = random.Random(f"{seed}/{batch}/{place}")  # a test suite's length is its task's
    verify_s = draw.lognormvariate(math.log(VERIFICATION_S), VERIFICATION_SIGMA)
    return replace(trajectory, verify_s=verify_s, reward_s=trajectory.finished_s + verify_s)


def _long_tool_calls(
    trajectory: Trajectory, batch: int, place: int, count: int, seed: int
) -> Trajectory:
    draw = random.Random(f"{seed}/{batch}/{place}/{trajectory.index}")
    turns = [
        replace(turn, exec_s=draw.lognormvariate(math.log(TOOL_CALL_S), TOOL_CALL_SIGMA))
        if turn.exec_s
        else turn
        for turn in trajectory.turns
    ]
    return replace(trajectory, turns=turns)


def _correlated_groups(
    trajectory: Trajectory, batch: int, place: int, count: int, seed: int
) -> Trajectory:
    order = list(range(count))
    random.Random(f"{seed}/{batch}").shuffle(order)
    factor = SLOWEST_GROUP ** (order[place] / max(1, count - 1))
    return replace(
        trajectory,
        sandbox_start_s=trajectory.sandbox_start_s * factor,
        turns=[replace(turn, exec_s=turn.exec_s * factor) for turn in trajectory.turns],
    )


WORKLOADS = {
    "recorded": Workload("the recording's own timings", _recorded),
    "long_verification": Workload(
        f"verification of a group's submitted trajectories takes one time, drawn from a log-normal "
        f"of median {VERIFICATION_S:g} s (sigma {VERIFICATION_SIGMA:g})",
        _long_verification,
    ),
    "long_tool_calls": Workload(
        f"each tool call takes a time of its own, drawn from a log-normal of median "
        f"{TOOL_CALL_S:g} s (sigma {TOOL_CALL_SIGMA:g})",
        _long_tool_calls,
    ),
    "correlated_groups": Workload(
        "sandbox starts and tool calls of a whole group times one factor, between 1 and "
        f"{SLOWEST_GROUP:g} over the groups of a batch",
        _correlated_groups,
    ),
}


def transform(batches: Batches, name: str, seed: int) -> dict[int, dict[int, list[Trajectory]]]:
    """A recording's batches under the workload `name`."""
    change = WORKLOADS[name].change
    return {
        batch: {
            group: [change(t, batch, place, len(groups), seed) for t in trajectories]
            for place, (group, trajectories) in enumerate(groups.items())
        }
        for batch, groups in batches.items()
    }
