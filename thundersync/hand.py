"""What a streaming schedule has in hand: the work that events have released and not yet done.

The rung of the release ladder (math.md section 3) decides which event releases a trajectory:
`submit` its last token, `reward` its own reward; under `group` and `batch` nothing is captured
early. `turn` is `submit`, and the forward pass of each turn as soon as its tokens are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from harness.protocols import (
    Event,
    Group,
    GroupClosed,
    Release,
    RewardArrived,
    Trajectory,
    TrajectoryFinished,
    TrajectoryLost,
    TurnGenerated,
)
from thundersync.seats import Seats


@dataclass
class Hand:
    """`captured` maps an open group to the ids whose score gradient lies in the ledger; those in
    `pending` still lack their reward there. `rewarded` and `lost` are pending ones to commit and to
    discard. `rewards` are those that have arrived in open groups, `waiting` what may not be
    captured before another group closes. `turns` has the running trajectories with new turns, and
    how many of their tokens are there; `begun` the group of every one whose turns the learner
    holds, `seats` the rank that holds them, `useless` those that it holds for nothing."""

    release: Release
    closed: list[Group] = field(default_factory=list)
    released: list[Trajectory] = field(default_factory=list)
    captured: dict[int, set[str]] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    waiting: list[Trajectory] = field(default_factory=list)
    rewarded: list[Trajectory] = field(default_factory=list)
    lost: list[Trajectory] = field(default_factory=list)
    rewards: dict[int, list[float]] = field(default_factory=dict)
    turns: dict[str, tuple[Trajectory, int]] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    seats: Seats = field(default_factory=Seats)
    useless: list[str] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Sort one event in."""
        if isinstance(event, TurnGenerated):
            if self.release == "turn":
                self.turns[event.trajectory.trajectory_id] = event.trajectory, event.tokens
        elif isinstance(event, TrajectoryFinished):
            if self.release in ("submit", "turn"):
                self.released.append(event.trajectory)
            self.turns.pop(event.trajectory.trajectory_id, None)  # what is new of it comes with it
        elif isinstance(event, RewardArrived):
            if event.trajectory.reward is not None:
                self.rewards.setdefault(event.trajectory.group, []).append(event.trajectory.reward)
            if event.trajectory.trajectory_id in self.pending:
                self.rewarded.append(event.trajectory)
            elif self.release == "reward":
                self.released.append(event.trajectory)
        elif isinstance(event, TrajectoryLost):
            self._forget(event.trajectory)
        elif isinstance(event, GroupClosed):
            self.closed.append(event.group)
            self.rewards.pop(event.group.group, None)
            candidates, self.waiting = [*self.waiting, *self.released], []
            self.released = [t for t in candidates if t.group != event.group.group]

    def _forget(self, trajectory: Trajectory) -> None:
        self.released = [t for t in self.released if t is not trajectory]
        self.waiting = [t for t in self.waiting if t is not trajectory]
        self.turns.pop(trajectory.trajectory_id, None)
        if trajectory.trajectory_id in self.pending:
            self.lost.append(trajectory)
        elif trajectory.trajectory_id in self.begun:
            self.use([trajectory.trajectory_id])
            self.useless.append(trajectory.trajectory_id)

    @property
    def closable(self) -> bool:
        """Closed-group work that may be done now; `batch` waits for the last group."""
        return bool(self.closed) and self.release != "batch"

    @property
    def empty(self) -> bool:
        """Nothing to do before the next event."""
        waits = self.closable or self.released or self.rewarded or self.lost
        return not (waits or self.turns or self.useless)

    @property
    def candidates(self) -> list[Trajectory]:
        """What is released, the most worth capturing first: a group with two different rewards has
        a signal for certain, and the more of its rewards are known and equal, the likelier it has
        none and its captures are wasted. Among equals those that share a pass with the most others,
        then the oldest."""
        if not self.released:  # after most events
            return []
        alike: Counter[tuple[int, float | None]] = Counter(
            (t.group, t.reward) for t in self.released if t.reward is not None
        )

        def rank(t: Trajectory) -> tuple[int, int]:
            known = self.rewards.get(t.group, [])
            certain = len(set(known)) > 1
            return 0 if certain else 1 + len(known), -alike[t.group, t.reward]

        return sorted(self.released, key=rank)

    def mark(self, chunk: list[Trajectory]) -> None:
        """The chunk is being captured, with the rewards that are known at this moment."""
        taken = {t.trajectory_id for t in chunk}
        self.released = [t for t in self.released if t.trajectory_id not in taken]
        self.captured.setdefault(chunk[0].group, set()).update(taken)
        self.pending |= {t.trajectory_id for t in chunk if t.reward is None}
        self.use(taken)

    def next_turns(self, ranks: int) -> dict[int, tuple[Trajectory, int]]:
        """Rank -> the turns that have waited longest for it, which it holds from now on."""
        taken: dict[int, tuple[Trajectory, int]] = {}
        for name, (trajectory, tokens) in self.turns.items():
            seat = self.seats.place(name, ranks)
            if seat not in taken:
                taken[seat] = trajectory, tokens
                self.seats.hold(name, seat, tokens)
                self.begun[name] = trajectory.group
                if len(taken) == ranks:
                    break
        for trajectory, _ in taken.values():
            del self.turns[trajectory.trajectory_id]
        return taken

    def seat(self, trajectory: Trajectory) -> int | None:
        """The rank that holds its turns, if one does."""
        return self.seats.of.get(trajectory.trajectory_id)

    def use(self, trajectory_ids: Iterable[str]) -> None:
        """Their gradients are being made: the learner holds no turns of them any more."""
        for name in trajectory_ids:
            self.begun.pop(name, None)
            self.seats.leave(name)

    def give_up(self, groups: Container[int]) -> list[str]:
        """What the learner holds for nothing: lost, or of closed groups and unused."""
        unused = [name for name, group in self.begun.items() if group in groups]
        self.use(unused)
        given, self.useless = self.useless + unused, []
        return given

    def wait(self) -> None:
        """Nothing that is released may be captured as things are: no group may be opened."""
        self.waiting += self.released
        self.released = []

    def uncapture(self, trajectory: Trajectory) -> None:
        """A discarded capture; a group without another holds no ledger any more."""
        held = self.captured[trajectory.group]
        held.discard(trajectory.trajectory_id)
        if not held:
            del self.captured[trajectory.group]

    def settle(self, trajectory: Trajectory) -> str:
        """A pending capture is committed or discarded; returns its id."""
        self.pending.discard(trajectory.trajectory_id)
        return trajectory.trajectory_id
