"""One attempt at a simulated task: where it is in its plan, and what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from environments.protocols import InfrastructureError, InfrastructureKind
from environments.simulated import draws
from environments.simulated.workload import Plan, PlannedTurn

STARTS: Sequence[InfrastructureKind] = ("image", "start", "disk")
COMMANDS: Sequence[InfrastructureKind] = ("exec_transport", "out_of_memory")
VERIFICATIONS: Sequence[InfrastructureKind] = ("verifier_timeout", "parser")
_STREAM = 0x6661696C  # of the draws below, apart from the workload's own


@dataclass(slots=True)
class Life:
    """`place` is (task seed, group, index, attempt), of which every failure is a function."""

    plan: Plan
    place: tuple[int, int, int, int]
    failures: Mapping[str, float]
    number: int = -1
    turn: PlannedTurn = field(default=PlannedTurn(0, 0, 0.0))
    verifications: int = 0

    def advance(self) -> int | None:
        """On to the next turn; returns how many tokens are read before it, None where there is no
        other."""
        turns = self.plan.turns
        if self.number + 1 >= len(turns):
            return None
        read = self.plan.prompt_tokens if self.number < 0 else self.turn.observation_tokens
        self.number += 1
        self.turn = turns[self.number]
        return read

    @property
    def last(self) -> bool:
        """Whether this is its last turn."""
        return self.number + 1 == len(self.plan.turns)

    def may_fail(self, kinds: Sequence[InfrastructureKind], moment: int) -> None:
        """Raises the InfrastructureError, if there is one, of this moment among those of its kinds
        (the turn's number, the verification's)."""
        if not self.failures:
            return
        for n, kind in enumerate(kinds):
            probability = self.failures.get(kind, 0.0)
            if probability and draws.key(_STREAM, *self.place, moment, n) < probability * 2**64:
                raise InfrastructureError(kind, "simulated")
