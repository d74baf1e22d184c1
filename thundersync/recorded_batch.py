"""A recorded batch whose events happen in an order that a test or a parity check chooses."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from harness.protocols import (
    Event,
    Group,
    GroupClosed,
    RewardArrived,
    Trajectory,
    TrajectoryFinished,
    TrajectoryLost,
    TurnGenerated,
)

EVENT_S = 0.001  # short: the learner is what a rung's choice is about here


class RecordedBatch:
    """A batch whose events happen in a given order, `burst` at a time.

    Trajectories finish in the order of `arrival`; a trajectory's reward arrives (and is set, on a
    copy of its own) `reward_delay` finishes later. Those in `retried` are lost once, after their
    last token (as `ID-lost`), and then finish again; those in `dropped` are lost for good, and
    their group closes without trajectories. Both map to how many places later in `arrival` the loss
    happens: 0 is at once, in the burst of the finish or the next; any other loss happens only when
    the schedule waits for it, having captured what it may. Every event takes EVENT_S of a time of
    its own. With `turns` each trajectory's turns are told before its end, those of several
    interleaved; those in `broken` are lost once before they finish (as `ID-broken`).
    """

    def __init__(
        self,
        groups: Sequence[Group],
        arrival: Sequence[Trajectory],
        burst: int,
        reward_delay: int = 0,
        retried: Mapping[str, int] | None = None,
        dropped: Mapping[str, int] | None = None,
        turns: bool = False,
        broken: Container[str] = (),
    ) -> None:
        self.index = self.version = 0
        self.now_s = 0.0
        self._burst = burst
        self._rewards = {t.trajectory_id: t.reward for t in arrival}
        self._events: list[Event] = []
        self._late: set[str] = set()  # trajectories whose loss is waited for
        self._waited: set[str] = set()  # and those whose end is
        retried, dropped = retried or {}, dropped or {}
        played = {t.trajectory_id: replace(t, reward=None) for t in arrival}
        failed = {t.group for t in arrival if t.trajectory_id in dropped}
        self.groups = [
            replace(g, trajectories=[], dropped=True)
            if g.group in failed
            else replace(g, trajectories=[played[t.trajectory_id] for t in g.trajectories])
            for g in groups
        ]
        self._under_way = {g.group: {t.trajectory_id for t in g.trajectories} for g in groups}
        lives = self._lives([played[t.trajectory_id] for t in arrival], retried, dropped)
        told = self._turns(lives, broken) if turns else lives
        self._sequence(told, played.keys() - dropped.keys(), reward_delay)

    def _lives(
        self, arrival: Sequence[Trajectory], retried: Mapping[str, int], dropped: Mapping[str, int]
    ) -> list[TrajectoryFinished | TrajectoryLost]:
        """Finishes and losses in their order; a loss comes after the finish at its place."""
        placed: list[tuple[int, bool, TrajectoryFinished | TrajectoryLost]] = []
        for place, trajectory in enumerate(arrival):
            name = trajectory.trajectory_id
            final = name in dropped
            if not final and name not in retried:
                placed.append((place, False, TrajectoryFinished(trajectory)))
                continue
            later = dropped[name] if final else retried[name]
            lost = trajectory if final else replace(trajectory, trajectory_id=f"{name}-lost")
            if later:
                self._late.add(lost.trajectory_id)
            loss = TrajectoryLost(lost, "exec_transport", final)
            placed += [(place, False, TrajectoryFinished(lost)), (place + later, True, loss)]
            if not final:
                placed.append((place + later, True, TrajectoryFinished(trajectory)))
        return [event for *_, event in sorted(placed, key=lambda p: p[:2])]

    def _turns(self, lives: Sequence[Event], broken: Container[str]) -> list[Event]:
        """The turns of trajectories, each before its last event, among those of others."""
        placed: list[tuple[float, Event]] = []
        for place, event in enumerate(lives):
            placed.append((place, event))
            if not isinstance(event, TrajectoryFinished):
                continue
            if place % 2:  # the learner has time for its turns
                self._waited.add(event.trajectory.trajectory_id)
            trajectory, count = event.trajectory, len(event.trajectory.turns)
            told = [trajectory]
            if trajectory.trajectory_id in broken:
                told.append(replace(trajectory, trajectory_id=f"{trajectory.trajectory_id}-broken"))
                placed.append((place - 0.1, TrajectoryLost(told[1], "exec_transport", False)))
                self._late.add(told[1].trajectory_id)
            placed += [
                (place - 0.3 * (count - n), TurnGenerated(t, n)) for t in told for n in range(count)
            ]
        return [event for _, event in sorted(placed, key=lambda p: p[0])]

    def _sequence(
        self,
        lives: Sequence[Event],
        judged: Container[str],
        reward_delay: int,
    ) -> None:
        """All events: rewards of those that are judged, late, and the groups' closes."""
        unjudged: list[Trajectory] = []
        for event in lives:
            self._events.append(event)
            if isinstance(event, TrajectoryLost):
                self._end(event.trajectory)
            elif isinstance(event, TrajectoryFinished) and event.trajectory.trajectory_id in judged:
                unjudged.append(event.trajectory)
                if len(unjudged) > reward_delay:
                    self._judge(unjudged.pop(0))
        for trajectory in unjudged:
            self._judge(trajectory)

    def _judge(self, trajectory: Trajectory) -> None:
        self._events.append(RewardArrived(trajectory))
        self._end(trajectory)

    def _end(self, trajectory: Trajectory) -> None:
        """Sequence a group's close after the last of its trajectories; one that is tried again is
        still under way."""
        under_way = self._under_way[trajectory.group]
        if trajectory.trajectory_id in under_way:
            under_way.remove(trajectory.trajectory_id)
            if not under_way:
                group = next(g for g in self.groups if g.group == trajectory.group)
                self._events.append(GroupClosed(group))

    def _deliver(self, count: int) -> list[Event]:
        taken, self._events = self._events[:count], self._events[count:]
        for event in taken:
            self.now_s += EVENT_S
            if isinstance(event, TrajectoryFinished):
                event.trajectory.finished_s = self.now_s
            elif isinstance(event, RewardArrived):
                event.trajectory.reward = self._rewards[event.trajectory.trajectory_id]
                event.trajectory.reward_s = self.now_s
        return taken

    async def next(self) -> Event | None:
        return next(iter(self._deliver(1)), None)

    def ready(self) -> list[Event]:
        for place, event in enumerate(self._events[: self._burst]):
            late = self._late if isinstance(event, TrajectoryLost) else set()
            late = self._waited if isinstance(event, TrajectoryFinished) else late
            if not isinstance(event, GroupClosed) and event.trajectory.trajectory_id in late:
                return self._deliver(place)
        return self._deliver(self._burst)
