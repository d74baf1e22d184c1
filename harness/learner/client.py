"""The Learner protocol over a worker process; torch-free, so the main process stays light."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.cluster.local import Worker
from harness.protocols import FoldSpec, Interval, ParityFigures, StepStats, Trajectory


@dataclass(frozen=True)
class ScoredTokens:
    """The part of a trajectory that a learner needs: exactly the engine's tokens."""

    trajectory_id: str
    group: int
    reward: float | None
    tokens_T: list[int]
    action_mask_T: list[int]
    behaviour_logprobs_T: list[float] | None = None


def scored(trajectory: Trajectory, behaviour: bool = False) -> ScoredTokens:
    """`behaviour` adds the engine's log-probabilities, which importance weights need."""
    return ScoredTokens(
        trajectory_id=trajectory.trajectory_id,
        group=trajectory.group,
        reward=trajectory.reward,
        tokens_T=trajectory.tokens_T,
        action_mask_T=trajectory.action_mask_T,
        behaviour_logprobs_T=trajectory.behaviour_logprobs_T if behaviour else None,
    )


class TorchLearnerClient:
    """Awaited verbs of harness.learner.torch_learner.TorchLearner in its own process."""

    TARGET = "harness.learner.torch_learner:TorchLearner"

    def __init__(
        self, options: dict[str, Any], threads: int, affinity: Sequence[int] | None = None
    ) -> None:
        self._worker = Worker(
            "learner/0", self.TARGET, options | {"threads": threads},
            threads=threads, affinity=affinity,
        )  # fmt: skip
        self._behaviour = options["objective"].importance.kind != "none"

    def _scored(self, trajectories: Sequence[Trajectory]) -> list[ScoredTokens]:
        return [scored(t, self._behaviour) for t in trajectories]

    async def start(self) -> None:
        await self._worker.start()

    async def accumulate(
        self, trajectories: Sequence[Trajectory], coefficients: Sequence[float]
    ) -> None:
        await self._worker.call("accumulate", self._scored(trajectories), list(coefficients))

    async def capture(self, trajectories: Sequence[Trajectory]) -> None:
        await self._worker.call("capture", self._scored(trajectories))

    async def reference_kl(self, trajectories: Sequence[Trajectory]) -> list[float]:
        return await self._worker.call("reference_kl", self._scored(trajectories))

    async def commit(self, trajectory_id: str, reward: float) -> None:
        await self._worker.call("commit", trajectory_id, reward)

    async def discard(self, trajectory_ids: Sequence[str]) -> None:
        await self._worker.call("discard", list(trajectory_ids))

    async def fold(self, spec: FoldSpec) -> None:
        await self._worker.call("fold", spec)

    async def drop(self, group: int) -> None:
        await self._worker.call("drop", group)

    async def step(self, normaliser: float) -> StepStats:
        return await self._worker.call("step", normaliser)

    async def parity_begin(self, normaliser: float) -> None:
        await self._worker.call("parity_begin", normaliser)

    async def parity_add(self) -> None:
        await self._worker.call("parity_add")

    async def parity_end(self) -> ParityFigures:
        return await self._worker.call("parity_end")

    async def publish(self) -> tuple[str, int]:
        return await self._worker.call("publish")

    async def drain_intervals(self) -> list[Interval]:
        return await self._worker.call("drain_intervals")

    async def close(self) -> None:
        await self._worker.close()
