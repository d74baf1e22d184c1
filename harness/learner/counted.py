"""What a gradient ledger would hold, counted: the bookkeeping of math.md section 2, no gradients.

It refuses what the real ledger (thundersync.ledger) refuses, apart from values that are not finite,
and its peaks are the real one's; a test plays both side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


class CountError(ValueError):
    """A contribution that cannot be accounted for exactly."""


@dataclass(slots=True)
class _Group:
    """Committed trajectories and their rewards. `affine`: of two sums, not of buckets."""

    affine: bool
    rewards: dict[str, float] = field(default_factory=dict)
    distinct: set[float] = field(default_factory=set)

    @property
    def held(self) -> int:
        return min(2, len(self.distinct)) if self.affine else len(self.distinct)


class CountedLedger:
    """Of one learner rank; `form` and `bucket_cap` as in ledger.*."""

    def __init__(self, form: str, bucket_cap: int, buffer_bytes: int) -> None:
        self._form = form
        self._most = 2 if form == "auto" else bucket_cap
        self._buffer_bytes = buffer_bytes
        self._groups: dict[int, _Group] = {}
        self._pending: dict[str, tuple[int, tuple[str, ...]]] = {}  # id -> group, its whole part
        self._parts = 0
        self._stored = 0
        self._seen: set[str] = set()
        self.buffers_peak = 0

    @property
    def bytes_peak(self) -> int:
        return self.buffers_peak * self._buffer_bytes

    def capture(self, group: int, trajectory_ids: Sequence[str]) -> None:
        """One gradient of `trajectory_ids`, pending; they must be committed together."""
        part = tuple(trajectory_ids)
        for name in part:
            if name in self._seen:
                raise CountError(f"{name}: captured before; a trajectory enters once")
        self._seen.update(part)
        self._pending |= dict.fromkeys(part, (group, part))
        self._parts += 1
        self.buffers_peak = max(self.buffers_peak, self._stored + self._parts)

    def commit(self, trajectory_ids: Sequence[str], reward: float) -> None:
        """Its reward makes a pending gradient part of its group; final."""
        number, part = self._take(trajectory_ids[0], "commit")
        if part != tuple(trajectory_ids):
            raise CountError(f"{trajectory_ids[0]}: captured with {part}, committed otherwise")
        group = self._groups.setdefault(number, _Group(self._form == "affine"))
        before = group.held
        group.rewards |= dict.fromkeys(part, reward)
        group.distinct.add(reward)
        if len(group.distinct) > self._most and not group.affine:
            if self._form != "auto":
                raise CountError(
                    f"group {number}: more than {self._most} distinct rewards; raise "
                    "ledger.bucket_cap, or take ledger.form=auto"
                )
            group.affine = True
        self._stored += group.held - before

    def _take(self, name: str, verb: str) -> tuple[int, tuple[str, ...]]:
        found = self._pending.get(name)
        if found is None:
            raise CountError(f"{name}: no pending capture to {verb}")
        for other in found[1]:
            del self._pending[other]
        self._parts -= 1
        return found

    def discard(self, trajectory_ids: Iterable[str]) -> None:
        for name in trajectory_ids:
            self._seen.difference_update(self._take(name, "discard")[1])

    def fold(self, number: int, coefficients: Mapping[str, tuple[float, float]]) -> int:
        """Free the group; returns how many buffers went into the total."""
        group = self._groups.pop(number, None)
        if group is None:
            raise CountError(f"group {number}: nothing was committed")
        for name, reward in group.rewards.items():
            if name not in coefficients or coefficients[name][0] != reward:
                raise CountError(f"{name}: committed with reward {reward}, closed otherwise")
        self._stored -= group.held
        return group.held

    def drop(self, number: int) -> None:
        group = self._groups.pop(number, None)
        self._stored -= group.held if group is not None else 0

    def end_of_update(self) -> None:
        """Nothing may be left: raises CountError naming what is."""
        if self._groups or self._pending:
            raise CountError(
                f"open at the step: groups {sorted(self._groups)}, pending {sorted(self._pending)}"
            )
        self._seen.clear()
