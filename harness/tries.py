"""How often a trajectory is tried, over all processes of a run that goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.config import RolloutConfig
from harness.protocols import Trajectory


class Tries:
    """`retries` + 1 for each trajectory. Where a run goes on with as many groups lost for good as
    an update has, it had ended of that: these have their tries again, else it would end of it
    again each time. A group lost beside others that were not stays dropped, as without a break."""

    def __init__(self, kept: Sequence[Trajectory], limits: RolloutConfig) -> None:
        """`kept` are the attempts that had ended."""
        self._each = limits.retries + 1
        self._lost = Counter((t.group, t.index) for t in kept if t.infrastructure_error is not None)
        self._judged = {(t.group, t.index) for t in kept if t.infrastructure_error is None}
        for_good = {
            place[0]
            for place, lost in self._lost.items()
            if lost % self._each == 0 and place not in self._judged
        }
        self._again = for_good if len(for_good) >= limits.groups_per_batch else set[int]()

    def last(self, group: int, index: int) -> int:
        """The attempt after which it is lost for good."""
        lost = self._lost[group, index]
        if (group, index) in self._judged:
            return lost
        if lost and lost % self._each == 0 and group not in self._again:
            return lost - 1
        return lost // self._each * self._each + self._each - 1
