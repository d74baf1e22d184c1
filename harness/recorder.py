"""What happens in rollouts, as it is counted and written down, whatever the schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from environments.protocols import InfrastructureKind
from harness.budget import Budget
from harness.protocols import (
    Event,
    Group,
    GroupClosed,
    RewardArrived,
    Trajectory,
    TrajectoryLost,
    TurnFinished,
    TurnGenerated,
)
from harness.timeline import Timeline

_TURNS = (TurnGenerated, TurnFinished)


class Recorder:
    """Hears every event before the schedule does. `on_trajectory` gets every trajectory once its
    end is known, with its batch: for groups that run without batches, the one that it would belong
    to in the order of the tasks."""

    def __init__(
        self,
        budget: Budget,
        timeline: Timeline,
        groups_per_batch: int,
        on_trajectory: Callable[[Trajectory, int], None],
    ) -> None:
        self._budget = budget
        self._timeline = timeline
        self._groups_per_batch = groups_per_batch
        self._on_trajectory = on_trajectory
        self.lost = 0
        self.last_loss: InfrastructureKind = "start"
        self.discarded: dict[str, Counter[str]] = {}
        """why -> difficulty -> closed groups that were not trained on."""

    def hear(self, event: Event) -> None:
        self._budget.count(event)
        if event.__class__ in _TURNS:  # most of them
            return
        if isinstance(event, RewardArrived):
            self._instant(event.trajectory.group, "reward", event.trajectory.trajectory_id)
            self._ended(event.trajectory)
        elif isinstance(event, TrajectoryLost):
            self.lost += 1
            self.last_loss = event.kind
            self._instant(event.trajectory.group, "lost", event.trajectory.trajectory_id)
            self._ended(event.trajectory)
        elif isinstance(event, GroupClosed):
            self._instant(event.group.group, "closed", event.group.task_id)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        discarded = {why: dict(groups) for why, groups in self.discarded.items()}
        return {"lost": self.lost, "last_loss": self.last_loss, "discarded": discarded}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.lost, self.last_loss = state["lost"], state["last_loss"]
        self.discarded = {why: Counter(groups) for why, groups in state["discarded"].items()}

    def discard(self, group: Group, why: str) -> None:
        self.discarded.setdefault(why, Counter())[group.difficulty] += 1
        self._instant(group.group, "discarded", why)

    def _ended(self, trajectory: Trajectory) -> None:
        self._on_trajectory(trajectory, trajectory.group // self._groups_per_batch)

    def _instant(self, group: int, name: str, subject: str) -> None:
        place = group % self._groups_per_batch
        self._timeline.instant(f"group/{place:02d}", name, group=group, subject=subject)
