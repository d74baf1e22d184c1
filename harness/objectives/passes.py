"""What a schedule asks of a run that the objective and the packing alone decide: one answer for the
live run, a recorded one and the gate's rehearsal."""

from __future__ import annotations

from collections.abc import Sequence

from harness.objectives.grpo import Grpo
from harness.packing import abreast, pack
from harness.protocols import Group, Trajectory


class ByObjective:
    """This part of the Run and Flow protocols; chunks are of at most `_chunk_tokens` tokens."""

    _objective: Grpo
    _chunk_tokens: int
    _without_padding: bool = False  # learner.packing=packed
    ranks: int

    def coefficients(self, group: Group) -> dict[str, tuple[Trajectory, float]]:
        return self._objective.coefficients(group)

    def enters(self, trajectory: Trajectory) -> bool:
        return self._objective.enters(trajectory)

    def matters(self, advantage: float) -> bool:
        return self._objective.matters(advantage)

    def chunks(self, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
        return pack(trajectories, self._chunk_tokens, self._without_padding)

    def rounds(self, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
        return abreast(self.chunks(trajectories), self.ranks)
