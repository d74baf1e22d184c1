"""Made-up trajectories for the parity check: random tokens, awkward on purpose."""

from __future__ import annotations

import random
from collections.abc import Sequence

from harness.protocols import Group, Trajectory

_SHORTEST = 12


def synthetic_groups(
    seed: int,
    vocabulary: int,
    rewards: Sequence[float],
    groups: int = 4,
    size: int = 6,
    tokens: int = 90,
) -> list[Group]:
    """Trajectories of random tokens, masks and lengths up to `tokens`; the first group is
    degenerate, the last has a trajectory without action tokens."""
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
                )
            )  # fmt: skip
        made.append(group)
    return made


def arrival(groups: Sequence[Group], seed: int) -> list[Trajectory]:
    """A random order of arrival over all groups."""
    trajectories = [t for g in groups for t in g.trajectories]
    random.Random(seed).shuffle(trajectories)
    return trajectories
