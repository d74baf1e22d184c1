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

from thundersync.accounting import Account
from thundersync.storage import Buffers, DeviceStorage, Storage, Where, storage_for
from thundersync.sums import combine, finite

Form = Literal["affine", "bucket", "auto"]


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

    @property
    def held(self) -> int:
        """Buffers, each the size of a gradient."""
        affine = (self.sum_0 is not None) + (self.sum_1 is not None)
        return len(self.buckets) + affine + (self.always is not None)


@dataclass(slots=True)
class _Pending:
    """A capture that waits for its reward."""

    group: int
    gradients: Buffers
    always: Buffers | None

    @property
    def held(self) -> int:
        return 1 if self.always is None else 2


class GradientLedger:
    """Ledger of one learner rank.

    `form`: affine keeps two buffers a group, bucket one per distinct reward (at most `bucket_cap`),
    auto starts with buckets and collapses to affine at the third distinct reward, which would cost
    more memory than the affine form. `dtype` is the storage's; None keeps the gradient's own. A
    pending gradient is held in the narrower of the two, so adds into wider buffers, and of a fold
    into a wider total, mix dtypes: torch computes them in the wider one. bfloat16 halves the memory
    and rounds every sum by up to 4e-3 of its size: never within the thresholds of math.md section
    6. `storage`: see thundersync.storage. Every gradient has the shapes of the first.

    `buffers_peak` and `bytes_peak` count what the ledger holds: buffers of open groups, pending
    gradients, and what it copies. The update's total and the gradient that a backward pass is
    making are the learner's.

    Errors: LedgerError for a non-finite gradient, a repeated trajectory, a cap overrun, or
    coefficients that the form cannot express.
    """

    def __init__(
        self,
        form: Form = "auto",
        dtype: torch.dtype | None = None,
        bucket_cap: int = 16,
        storage: Where = "device",
    ) -> None:
        self.form: Form = form
        self._most_buckets = 2 if form == "auto" else bucket_cap
        self._where: Where = storage
        self._groups: dict[int, _OpenGroup] = {}
        self._pending: dict[str, _Pending] = {}
        self._seen: set[str] = set()
        self._account = Account(dtype)
        self._storage: Storage = DeviceStorage()

    @property
    def buffers_peak(self) -> int:
        return self._account.buffers_peak

    @property
    def bytes_peak(self) -> int:
        return self._account.bytes_peak

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
        for trajectory in trajectory_ids:
            if trajectory in self._seen:
                raise LedgerError(f"{trajectory}: captured before; a trajectory enters once")
        account = self._account
        if not account.measured:
            self._storage = storage_for(self._where, gradients[0].device)
            account.measure(gradients, self._storage.copies)
        self._seen.update(trajectory_ids)
        taken = self._storage.take(gradients, account.pending_dtype)
        terms = None if always is None else self._storage.take(always, account.pending_dtype)
        self._pending[",".join(trajectory_ids)] = _Pending(group, taken, terms)
        account.took(1 if always is None else 2)

    def commit(self, trajectory_ids: Sequence[str], reward: float) -> None:
        """The reward of one pending capture: from here on it is part of its group, finally."""
        if not math.isfinite(reward):
            raise LedgerError(f"{', '.join(trajectory_ids)}: reward {reward} is not finite")
        pending = self._pending.pop(",".join(trajectory_ids), None)
        if pending is None:
            raise LedgerError(f"{', '.join(trajectory_ids)}: no pending capture")
        group = self._groups.setdefault(pending.group, _OpenGroup())
        before = group.held
        self._add_policy(group, pending, reward)
        if pending.always is not None:
            group.always = self._sum(group.always, pending.always)
        group.rewards.update(dict.fromkeys(trajectory_ids, reward))
        self._account.settled(pending.held, group.held - before)

    def _add_policy(self, group: _OpenGroup, pending: _Pending, reward: float) -> None:
        if self.form == "affine" or group.sum_0 is not None:
            self._add_affine(group, reward, pending.gradients)
        elif reward in group.buckets or len(group.buckets) < self._most_buckets:
            group.buckets[reward] = self._sum(group.buckets.get(reward), pending.gradients)
        elif self.form == "auto":
            self._collapse(group)
            self._add_affine(group, reward, pending.gradients)
        else:
            raise LedgerError(
                f"group {pending.group}: more than {self._most_buckets} distinct rewards; raise "
                "ledger.bucket_cap, or take ledger.form=auto where the advantages are affine"
            )

    def _sum(self, buffer: Buffers | None, gradients: Buffers) -> Buffers:
        """The buffer after one add, or the gradient itself as the first of a buffer."""
        if buffer is None:
            return self._as_buffer(gradients)
        ready = self._storage.ready
        foreach_add_(ready(buffer), ready(gradients))
        return buffer

    def _as_buffer(self, gradients: Buffers) -> Buffers:
        dtype = self._account.stored_dtype
        if gradients[0].dtype == dtype:
            return gradients
        return [g.to(dtype) for g in self._storage.ready(gradients)]

    def _add_affine(self, group: _OpenGroup, reward: float, gradients: Buffers) -> None:
        if group.sum_0 is None:
            group.centre = reward
        group.sum_0 = self._sum(group.sum_0, gradients)
        shifted = reward - group.centre
        if shifted == 0.0:
            return
        if group.sum_1 is None:
            group.sum_1 = self._as_buffer(gradients)
            foreach_mul_(group.sum_1, shifted)
        else:
            foreach_add_(group.sum_1, gradients, alpha=shifted)

    def _collapse(self, group: _OpenGroup) -> None:
        """From two buckets B[c], B[r] to affine: sum_0 = B[c] + B[r], sum_1 = (r - c) B[r]."""
        (centre, first), (reward, second) = group.buckets.items()
        group.buckets = {}
        group.centre, group.sum_0, group.sum_1 = centre, self._sum(first, second), second
        foreach_mul_(second, reward - centre)

    def discard(self, trajectory_ids: Sequence[str]) -> None:
        """Throw pending captures away; the trajectories may be captured again (a retried
        rollout)."""
        for trajectory in trajectory_ids:
            pending = self._pending.pop(trajectory, None)
            if pending is None:
                raise LedgerError(f"{trajectory}: no pending capture to discard")
            self._seen.discard(trajectory)
            self._account.freed(pending.held, 0)

    def fold(
        self, number: int, coefficients: Mapping[str, tuple[float, float]], total: Buffers
    ) -> None:
        """Add sum of advantage x H over the group's committed trajectories to `total`, and free it.

        `coefficients`: trajectory id -> (reward, advantage) of the closed group. The group's own
        sum is made first and looked at once: a sum keeps every infinity and NaN of its terms, so
        none reaches `total`, at the price of one pass a group. After an error `total` is as it was
        and nothing of the group is left.
        """
        group = self._groups.pop(number, None)
        if group is None:
            raise LedgerError(f"group {number}: nothing was committed")
        self._account.folding(group.held, total[0].dtype)
        terms = _terms(number, group, _advantages(number, group, coefficients))
        if not terms:
            return  # degenerate: the policy term alone is dropped
        scale, combined = combine([(a, self._storage.ready(b)) for a, b in terms])
        if not finite(combined):
            names = ", ".join(group.rewards)
            raise LedgerError(f"group {number}: a gradient among those of {names} is not finite")
        foreach_add_(total, self._storage.onto(combined, total[0].device), alpha=scale)

    def drop(self, number: int) -> None:
        """Free what a group committed, without a contribution (dropped, or degenerate)."""
        group = self._groups.pop(number, None)
        if group is not None:
            self._account.freed(0, group.held)

    def end_of_update(self) -> None:
        """Nothing may be left: raises LedgerError naming what is. Forgets the seen trajectories."""
        if self._groups or self._pending:
            raise LedgerError(
                f"open at the step: groups {sorted(self._groups)}, pending {sorted(self._pending)}"
            )
        self._seen.clear()

    def reset_peaks(self) -> None:
        self._account.reset_peaks()


def _advantages(
    number: int, group: _OpenGroup, coefficients: Mapping[str, tuple[float, float]]
) -> dict[float, float]:
    """reward -> advantage; what was committed must have closed with the same reward."""
    for trajectory, reward in group.rewards.items():
        if coefficients.get(trajectory, (math.nan, 0.0))[0] != reward:
            raise LedgerError(f"{trajectory}: committed with reward {reward}, closed otherwise")
    advantage: dict[float, float] = {}
    for reward, value in coefficients.values():
        if advantage.setdefault(reward, value) != value:
            raise LedgerError(f"group {number}: equal rewards {reward} got two advantages")
    return advantage


def _terms(
    number: int, group: _OpenGroup, advantage: Mapping[float, float]
) -> list[tuple[float, Buffers]]:
    """(coefficient, buffers) of the group's contribution, in an order that arrival does not change.
    Affine form: with a(r) = slope (r - c) + a(c) it is slope * sum_1 + a(c) * sum_0."""
    terms = [(advantage[reward], group.buckets[reward]) for reward in sorted(group.buckets)]
    if group.sum_0 is not None:
        terms.append((advantage[group.centre], group.sum_0))
    if group.sum_1 is not None:
        terms.append((_slope(number, advantage), group.sum_1))
    if group.always is not None:
        terms.append((1.0, group.always))
    return [(coefficient, buffers) for coefficient, buffers in terms if coefficient != 0.0]


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
