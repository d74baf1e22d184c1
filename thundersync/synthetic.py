"""Made-up trajectories for the parity check: random tokens, awkward on purpose."""

from __future__ import annotations

import random
from collections.abc import Sequence

from harness.protocols import Group, Trajectory, Turn

_SHORTEST = 12


def synthetic_groups(
    seed: int,
    vocabulary: int,
    rewards: Sequence[float],
    groups: int = 4,
    size: int = 6,
    tokens: int = 90,
    rewritten: bool = False,
) -> list[Group]:
    """Trajectories of random tokens, masks and lengths up to `tokens`; the first group is
    degenerate, the last has a trajectory without action tokens. A turn is a few runs of action
    tokens; with `rewritten` half of the turns begin a sequence of their own."""
    draw = random.Random(seed)
    made = []
    for g in range(groups):
        group = Group(g, f"task-{g}", "easy")
        for i in range(size):
            length = draw.randint(min(_SHORTEST, tokens), tokens)
            mask = [0] + [int(draw.random() < 0.3) for _ in range(length - 2)] + [1]
            if (g, i) == (groups - 1, 0):
                mask = [0] * length
            group.trajectories.append(
                Trajectory(
                    f"{g}-{i}", group.task_id, "easy", g, i, seed=i,
                    tokens_T=[draw.randrange(vocabulary) for _ in range(length)],
                    action_mask_T=mask,
                    reward=rewards[0] if g == 0 else rewards[i % len(rewards)],
                    turns=_turns(mask),
                )
            )  # fmt: skip
            if rewritten:
                trajectory = group.trajectories[-1]
                ends = [turn.action_end for turn in trajectory.turns[::2]]
                trajectory.rewritten_at = [end for end in ends if end < length]
        made.append(group)
    return made


def _turns(mask_T: Sequence[int]) -> list[Turn]:
    """Every third run of action tokens ends a turn."""
    edges = [t for t in range(1, len(mask_T)) if mask_T[t - 1] and not mask_T[t]]
    ends = [*edges[2::3], len(mask_T)]
    starts = [next((t for t in range(end - 1, 0, -1) if not mask_T[t - 1]), 0) for end in ends]
    return [Turn(start, end, 0.0, 0.0) for start, end in zip(starts, ends, strict=True)]


def arrival(groups: Sequence[Group], seed: int) -> list[Trajectory]:
    """A random order of arrival over all groups."""
    trajectories = [t for g in groups for t in g.trajectories]
    random.Random(seed).shuffle(trajectories)
    return trajectories
