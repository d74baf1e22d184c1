"""Whatever happens to groups on their way, the ledger gives the plain batch gradient.

The reference is literal: advantages by numpy from the final rewards, then float64 sums over the
final gradients. It shares nothing with the ledger or the objective.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import ObjectiveConfig
from harness.objectives.grpo import Grpo
from thundersync.ledger import GradientLedger, LedgerError

SHAPES = ((3, 2), (5,))
EPSILON = 1e-6
Buffers = list[torch.Tensor]

rewards_G = st.integers(1, 16).flatmap(
    lambda size: st.one_of(
        st.lists(st.sampled_from([0.0, 1.0]), min_size=size, max_size=size),
        st.lists(st.sampled_from([0.0, 0.25, 1.0, -2.0]), min_size=size, max_size=size),
        st.lists(st.floats(-1, 1).map(lambda r: round(r, 6)), min_size=size, max_size=size),
        st.lists(st.floats(99, 101).map(lambda r: round(r, 6)), min_size=size, max_size=size),
        st.floats(-2, 2).map(lambda r: [r] * size),
    )
)


def literal_advantages(rewards: list[float], estimator: str) -> list[float]:
    """math.md section 2, written down once more."""
    r, count = np.array(rewards), len(rewards)
    if r.max() == r.min() or (estimator == "leave_one_out_std" and count < 3):
        return [0.0] * count
    others = [np.delete(r, i) for i in range(count)]
    match estimator:
        case "mean":
            found = r - r.mean()
        case "mean_std_population":
            found = (r - r.mean()) / (np.sqrt(((r - r.mean()) ** 2).mean()) + EPSILON)
        case "mean_std_sample":
            variance = ((r - r.mean()) ** 2).sum() / (count - 1)
            found = (r - r.mean()) / (np.sqrt(variance) + EPSILON)
        case "leave_one_out":
            found = np.array([r[i] - o.mean() for i, o in enumerate(others)])
        case _:
            scales = [(r if o.max() == o.min() else o).std() + EPSILON for o in others]
            found = np.array([(r[i] - o.mean()) / scales[i] for i, o in enumerate(others)])
    return [float(a) for a in found]


@dataclass
class World:
    """Groups of trajectories on their way through a ledger, in a random order of events."""

    random: Random
    ledger: GradientLedger
    rewards: list[list[float]]
    always: bool
    dtype: torch.dtype
    estimator: str
    total: Buffers = field(default_factory=list)
    expected: np.ndarray = field(default_factory=lambda: np.zeros(11))
    scale: float = 0.0

    def __post_init__(self) -> None:
        self.total = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
        self._generator = torch.Generator().manual_seed(self.random.randrange(2**31))
        self._final: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def _gradient(self) -> Buffers:
        return [
            torch.randn(shape, generator=self._generator, dtype=torch.float64).to(self.dtype)
            for shape in SHAPES
        ]

    def run(self) -> None:
        """Each trajectory is captured alone and pending, captured with its alike and committed at
        once, or left for the group's close; some are lost and tried again, some groups dropped."""
        lanes = [self._lane(g) for g in range(len(self.rewards))]
        while lanes:
            lane = self.random.choice(lanes)
            if next(lane, None) is None:
                lanes.remove(lane)
        self.ledger.end_of_update()

    def _lane(self, group: int):
        """One group's events, to be interleaved with the others'; yields after each."""
        rewards, draw = self.rewards[group], self.random
        waiting = list(range(len(rewards)))
        draw.shuffle(waiting)
        waiting = [i for i in waiting if draw.random() < 0.9]  # the others are never captured
        captured = bool(waiting)
        pending: list[int] = []
        while waiting or pending:
            if waiting and (not pending or draw.random() < 0.6):
                first = waiting.pop()
                if draw.random() < 0.3:
                    alike = [i for i in waiting if rewards[i] == rewards[first]][
                        : draw.randrange(3)
                    ]
                    waiting = [i for i in waiting if i not in alike]
                    self._capture(group, [first, *alike])
                    self._commit(group, [first, *alike])
                else:
                    self._capture(group, [first])
                    pending.append(first)
            else:
                i = pending.pop(draw.randrange(len(pending)))
                fate = draw.random()
                if fate < 0.2:  # its rollout or its verifier failed: it starts again
                    if fate < 0.1:
                        with pytest.raises(LedgerError, match="not finite"):
                            self.ledger.commit([self._id(group, i)], math.nan)
                    self.ledger.discard([self._id(group, i)])
                    waiting.insert(0, i)
                else:
                    self._commit(group, [i])
            yield True
        if draw.random() < 0.1:
            self.ledger.drop(group)
        elif captured:
            self._close(group)
            yield True

    def _id(self, group: int, i: int) -> str:
        return f"{group}/{i}"

    def _capture(self, group: int, members: list[int]) -> None:
        summed, terms = self._gradient(), self._gradient() if self.always else None
        names = [self._id(group, i) for i in members]
        # Of a joint gradient the members' own never exist apart: it is noted under the first.
        self._final |= {n: (np.zeros(11), np.zeros(11)) for n in names}
        self._final[names[0]] = (flat(summed), flat(terms) if terms else np.zeros(11))
        self.ledger.capture(group, names, summed, terms)

    def _commit(self, group: int, members: list[int]) -> None:
        names = [self._id(group, i) for i in members]
        self.ledger.commit(names, self.rewards[group][members[0]])

    def _close(self, group: int) -> None:
        rewards = self.rewards[group]
        objective = Grpo(ObjectiveConfig(estimator=self.estimator), group_size=3)
        names = [self._id(group, i) for i in range(len(rewards))]
        values = objective.advantages(rewards)
        known = {n: (r, a) for n, r, a in zip(names, rewards, values, strict=True)}
        self.ledger.fold(group, known, self.total)
        literal = literal_advantages(rewards, self.estimator)
        for name, advantage in zip(names, literal, strict=True):
            score, terms = self._final.get(name, (np.zeros(11), np.zeros(11)))
            self.expected += advantage * score + terms
            self.scale += float(np.linalg.norm(score)) * max(map(abs, literal))
            self.scale += float(np.linalg.norm(terms))


def flat(buffers: Buffers) -> np.ndarray:
    return torch.cat([t.double().flatten() for t in buffers]).numpy().copy()


AFFINE = ["mean", "mean_std_population", "mean_std_sample", "leave_one_out"]
CASES = [(f, e) for f in ("affine", "bucket", "auto") for e in AFFINE]
CASES.append(("bucket", "leave_one_out_std"))


@settings(max_examples=300, deadline=None)
@given(
    case=st.sampled_from(CASES),
    rewards=st.lists(rewards_G, min_size=1, max_size=4),
    always=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    random=st.randoms(use_true_random=False),
)
def test_the_ledger_gives_the_plain_batch_gradient(
    case: Any, rewards: list[list[float]], always: bool, dtype: torch.dtype, random: Random
) -> None:
    """Gradients in float32 or float64, a float64 ledger."""
    form, estimator = case
    ledger = GradientLedger(form, torch.float64)
    world = World(random, ledger, rewards, always, dtype, estimator)
    world.run()
    assert np.linalg.norm(flat(world.total) - world.expected) <= 1e-12 * max(world.scale, 1e-300)
