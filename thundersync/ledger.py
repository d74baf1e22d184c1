"""The gradient ledger: score gradients wait here, per group, until their advantages are known.

Source: math.md section 2. Lives in a learner's process; schedules hold trajectory ids only. Nothing
is ever subtracted: a capture is pending until its reward commits it, pending ones are discarded
whole, a commit is final. The first gradient of a buffer is swapped in, not copied; later ones cost
one add.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import (
    _foreach_add_ as foreach_add_,  # pyright: ignore[reportPrivateImportUsage]
)
from torch import (
    _foreach_mul_ as foreach_mul_,  # pyright: ignore[reportPrivateImportUsage]
)
from torch import (
    _foreach_norm as foreach_norm,  # pyright: ignore[reportPrivateImportUsage]
)

Form = Literal["affine", "bucket", "auto"]
Buffers = list[torch.Tensor]


class LedgerError(RuntimeError):
    """A contribution that cannot be accounted for exactly."""


@dataclass
class _OpenGroup:
    """What a group has committed so far. Bucket form: reward -> sum of H. Affine form: `centre` is
    the group's first reward c, `sum_0` = sum of H, `sum_1` = sum of (r - c) H (the shift
    identity). `always`: the summed gradient of the reward-independent terms (math.md section 4)."""

    rewards: dict[str, float] = field(default_factory=dict)
    buckets: dict[float, Buffers] = field(default_factory=dict)
    centre: float = 0.0
    sum_0: Buffers | None = None
    sum_1: Buffers | None = None
    always: Buffers | None = None

    def buffers(self) -> list[Buffers]:
        single = [b for b in (self.sum_0, self.sum_1, self.always) if b is not None]
        return [*self.buckets.values(), *single]


class GradientLedger:
    """Ledger of one learner rank.

    `form`: affine keeps two buffers a group, bucket one per distinct reward (at most `bucket_cap`),
    auto starts with buckets and collapses to affine at the third distinct reward. `dtype` is the
    storage's; None keeps the gradient's own. Errors: LedgerError for a non-finite gradient, a
    repeated trajectory, a cap overrun, or coefficients that the form cannot express.
    """

    def __init__(
        self, form: Form = "auto", dtype: torch.dtype | None = None, bucket_cap: int = 16
    ) -> None:
        self.form: Form = form
        self._dtype = dtype
        self._bucket_cap = bucket_cap
        self._groups: dict[int, _OpenGroup] = {}
        self._pending: dict[str, tuple[int, Buffers, Buffers | None]] = {}
        self._seen: set[str] = set()
        self.buffers_peak = 0
        self.bytes_peak = 0

    def capture(
        self,
        group: int,
        trajectory_ids: Sequence[str],
        gradients: Buffers,
        always: Buffers | None = None,
    ) -> None:
        """Take over the gradient of the summed score of `trajectory_ids` (one group), pending, and
        `always`, that of their reward-independent terms: it enters with coefficient 1 when the
        group is folded, whatever the advantages. The caller gives the tensors away. Several ids
        must be committed with one reward."""
        repeated = [t for t in trajectory_ids if t in self._seen]
        if repeated:
            raise LedgerError(f"{repeated[0]}: captured before; a trajectory enters once")
        held = gradients if always is None else [*gradients, *always]
        if not all(math.isfinite(n) for n in foreach_norm(held)):
            raise LedgerError(f"{', '.join(trajectory_ids)}: the score gradient is not finite")
        self._seen.update(trajectory_ids)
        if self._dtype is not None:
            gradients = [g.to(self._dtype) for g in gradients]
            always = None if always is None else [g.to(self._dtype) for g in always]
        self._pending[",".join(trajectory_ids)] = (group, gradients, always)
        self._account()

    def commit(self, trajectory_ids: Sequence[str], reward: float) -> None:
        """The reward of one pending capture: from here on it is part of its group, finally."""
        if not math.isfinite(reward):
            raise LedgerError(f"{', '.join(trajectory_ids)}: reward {reward} is not finite")
        try:
            number, gradients, always = self._pending.pop(",".join(trajectory_ids))
        except KeyError:
            raise LedgerError(f"{', '.join(trajectory_ids)}: no pending capture") from None
        group = self._groups.setdefault(number, _OpenGroup())
        if self.form == "affine" or group.sum_0 is not None:
            self._add_affine(group, reward, gradients)
        elif reward in group.buckets:
            foreach_add_(group.buckets[reward], gradients)
        elif self.form == "auto" and len(group.buckets) == 2:
            self._collapse(group)
            self._add_affine(group, reward, gradients)
        elif len(group.buckets) >= self._bucket_cap:
            raise LedgerError(
                f"group {number}: more than {self._bucket_cap} distinct rewards; "
                "use ledger.form=affine or auto"
            )
        else:
            group.buckets[reward] = gradients
        if always is not None and group.always is not None:
            foreach_add_(group.always, always)
        else:
            group.always = group.always or always
        group.rewards.update(dict.fromkeys(trajectory_ids, reward))
        self._account()

    def _add_affine(self, group: _OpenGroup, reward: float, gradients: Buffers) -> None:
        if group.sum_0 is None:
            group.centre, group.sum_0 = reward, gradients
            return
        foreach_add_(group.sum_0, gradients)
        shifted = reward - group.centre
        if shifted == 0.0:
            return
        if group.sum_1 is None:
            foreach_mul_(gradients, shifted)
            group.sum_1 = gradients
        else:
            foreach_add_(group.sum_1, gradients, alpha=shifted)

    def _collapse(self, group: _OpenGroup) -> None:
        """From two buckets B[c], B[r] to affine: sum_0 = B[c] + B[r], sum_1 = (r - c) B[r]."""
        (centre, first), (reward, second) = group.buckets.items()
        group.buckets = {}
        group.centre, group.sum_0 = centre, first
        foreach_add_(first, second)
        foreach_mul_(second, reward - centre)
        group.sum_1 = second

    def discard(self, trajectory_ids: Sequence[str]) -> None:
        """Throw pending captures away; the trajectories may be captured again (a retried
        rollout)."""
        for trajectory in trajectory_ids:
            if self._pending.pop(trajectory, None) is None:
                raise LedgerError(f"{trajectory}: no pending capture to discard")
            self._seen.discard(trajectory)

    def fold(
        self, number: int, coefficients: Mapping[str, tuple[float, float]], total: Buffers
    ) -> None:
        """Add sum of advantage x H over the group's committed trajectories to `total`, and free it.

        `coefficients`: trajectory id -> (reward, advantage) of the closed group. Affine form: with
        a(r) = slope (r - c) + a(c) the group's sum is slope * sum_1 + a(c) * sum_0.
        """
        group = self._groups.pop(number, None)
        if group is None:
            raise LedgerError(f"group {number}: nothing was committed")
        for trajectory, reward in group.rewards.items():
            if coefficients.get(trajectory, (math.nan, 0.0))[0] != reward:
                raise LedgerError(f"{trajectory}: committed with reward {reward}, closed otherwise")
        advantage: dict[float, float] = {}
        for reward, value in coefficients.values():
            if advantage.setdefault(reward, value) != value:
                raise LedgerError(f"group {number}: equal rewards {reward} got two advantages")
        if group.always is not None:
            foreach_add_(total, group.always)
        if not any(advantage.values()):
            return  # degenerate: the policy term alone is dropped
        for reward, buffers in group.buckets.items():
            foreach_add_(total, buffers, alpha=advantage[reward])
        if group.sum_0 is not None:
            foreach_add_(total, group.sum_0, alpha=advantage[group.centre])
        if group.sum_1 is not None:
            foreach_add_(total, group.sum_1, alpha=_slope(number, advantage))

    def drop(self, number: int) -> None:
        """Free what a group committed, without a contribution (dropped, or degenerate)."""
        self._groups.pop(number, None)

    def end_of_update(self) -> None:
        """Nothing may be left: raises LedgerError naming what is. Forgets the seen trajectories."""
        if self._groups or self._pending:
            raise LedgerError(
                f"open at the step: groups {sorted(self._groups)}, pending {sorted(self._pending)}"
            )
        self._seen.clear()

    def reset_peaks(self) -> None:
        self.buffers_peak = self.bytes_peak = 0

    def _account(self) -> None:
        held = [b for g in self._groups.values() for b in g.buffers()]
        held += [b for _, *pair in self._pending.values() for b in pair if b is not None]
        self.buffers_peak = max(self.buffers_peak, len(held))
        size = sum(t.numel() * t.element_size() for buffers in held for t in buffers)
        self.bytes_peak = max(self.bytes_peak, size)


def _slope(number: int, advantage: Mapping[float, float]) -> float:
    """The slope of the group's advantages in the reward; refuses what is not affine."""
    low, high = min(advantage), max(advantage)
    slope = (advantage[high] - advantage[low]) / (high - low)
    scale = max(abs(a) for a in advantage.values())
    for reward, value in advantage.items():
        if abs(advantage[low] + slope * (reward - low) - value) > 1e-9 * scale:
            raise LedgerError(
                f"group {number}: the advantages are not affine in the reward; "
                "use ledger.form=bucket"
            )
    return slope
