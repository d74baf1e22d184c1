"""The real learner in virtual time: gradients and weights of the policy, in the time that the
simulated one charges for trajectories as long as their lives say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from harness.charged.lives import Lengths
from harness.charged.settings import PLACEMENT
from harness.charged.workshop import Workshop
from harness.learner.client import ScoredTokens, scored
from harness.learner.simulated import SimulatedLearner
from harness.learner.torch_learner import TorchLearner
from harness.packing import pack
from harness.protocols import FoldSpec, Interval, ParityFigures, StepStats, Trajectory

assert PLACEMENT.chunk_tokens is not None
_CHUNK_TOKENS = PLACEMENT.chunk_tokens


class ChargedLearner:
    """The Learner protocol. Real verbs happen one after the other in the order of asking, as the
    simulated ones do. Inside a parity check nothing is charged: it is outside the budget. Recorded
    trajectories (`lengths` is None) are charged for as they are."""

    def __init__(
        self,
        paper: SimulatedLearner,
        real: TorchLearner,
        workshop: Workshop,
        lengths: Lengths | None,
        behaviour: bool,
        repack: bool = True,
    ) -> None:
        """`behaviour`: the objective needs the engine's log-probabilities. Without `repack` passes
        are those that are asked for."""
        self._paper, self._real, self._workshop = paper, real, workshop
        self._lengths, self._behaviour = lengths, behaviour
        self._repack = repack
        self._checking = False

    def _scored(self, trajectories: Sequence[Trajectory]) -> list[ScoredTokens]:
        return [scored(t, self._behaviour) for t in trajectories]

    def _passes(self, rows: Sequence[ScoredTokens]) -> list[list[ScoredTokens]]:
        """Callers may put chunks for several ranks together; in a parity check it is their packing
        that is permuted."""
        as_asked = self._checking or not self._repack
        return [list(rows)] if as_asked else pack(rows, _CHUNK_TOKENS)

    def _charged(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """As long as their lives say."""
        if self._lengths is None:
            return list(trajectories)
        return [
            Trajectory(
                t.trajectory_id, t.task_id, t.difficulty, t.group, t.index, t.seed, reward=t.reward,
                tokens_T=cast("list[int]", range(self._lengths[t.trajectory_id].charged)),
            )
            for t in trajectories
        ]  # fmt: skip

    async def accumulate(
        self, trajectories: Sequence[Trajectory], coefficients: Sequence[float]
    ) -> None:
        known = {t.trajectory_id: c for t, c in zip(trajectories, coefficients, strict=True)}
        jobs = [
            self._workshop.bench(
                self._real.accumulate, rows, [known[row.trajectory_id] for row in rows]
            )
            for rows in self._passes(self._scored(trajectories))
        ]
        if not self._checking:
            await self._paper.accumulate(self._charged(trajectories), coefficients)
        for job in jobs:
            job.result()

    async def capture(self, trajectories: Sequence[Trajectory]) -> None:
        job = self._workshop.bench(self._real.capture, self._scored(trajectories))
        if not self._checking:
            await self._paper.capture(self._charged(trajectories))
        job.result()

    async def extend(self, turns: Mapping[int, tuple[Trajectory, int]]) -> None:
        if self._lengths is not None:
            raise ValueError("schedule.release=turn: no turn is passed by itself here")
        jobs = [
            self._workshop.bench(self._real.extend, scored(trajectory, self._behaviour, tokens))
            for trajectory, tokens in turns.values()
        ]
        await self._paper.extend(turns)
        for job in jobs:
            job.result()

    async def abandon(self, trajectory_ids: Sequence[str]) -> None:
        job = self._workshop.bench(self._real.abandon, list(trajectory_ids))
        await self._paper.abandon(trajectory_ids)
        job.result()

    async def turn_settings(self) -> Mapping[str, int | None] | None:
        return self._workshop.bench(self._real.turn_settings).result()

    async def reference_kl(self, trajectories: Sequence[Trajectory]) -> list[float]:
        raise ValueError("objective.kl.place=reward: its passes have no time here")

    async def commit(self, trajectory_id: str, reward: float) -> None:
        job = self._workshop.bench(self._real.commit, trajectory_id, reward)
        await self._paper.commit(trajectory_id, reward)
        job.result()

    async def discard(self, trajectory_ids: Sequence[str]) -> None:
        job = self._workshop.bench(self._real.discard, list(trajectory_ids))
        await self._paper.discard(trajectory_ids)
        job.result()

    async def fold(self, spec: FoldSpec) -> None:
        job = self._workshop.bench(self._real.fold, spec)
        await self._paper.fold(spec)
        job.result()

    async def drop(self, group: int) -> None:
        job = self._workshop.bench(self._real.drop, group)
        await self._paper.drop(group)
        job.result()

    async def step(self, normaliser: float) -> StepStats:
        """What was learnt is the real one's, what ledgers held the simulated one's: that is what
        the hardware's ranks would hold."""
        job = self._workshop.bench(self._real.step, normaliser)
        paper = await self._paper.step(normaliser)
        return replace(
            job.result(),
            ledger_buffers_peak=paper.ledger_buffers_peak,
            ledger_bytes_peak=paper.ledger_bytes_peak,
            buffer_bytes=paper.buffer_bytes,
            free_bytes=None,
        )

    async def publish(self) -> tuple[str, int]:
        job = self._workshop.bench(self._real.publish)
        await self._paper.publish()
        return job.result()

    async def parity_begin(self, normaliser: float) -> None:
        self._checking = True
        self._workshop.bench(self._real.parity_begin, normaliser).result()

    async def parity_add(self) -> None:
        self._workshop.bench(self._real.parity_add).result()

    async def parity_end(self) -> ParityFigures:
        figures = self._workshop.bench(self._real.parity_end).result()
        self._checking = False
        return figures

    async def drain_intervals(self) -> list[Interval]:
        """At charged times; tokens are those that the trajectories have, as everywhere in a run's
        records."""
        self._workshop.bench(self._real.drain_intervals).result()
        found = await self._paper.drain_intervals()
        return [replace(i, args=self._counted(i.args)) for i in found]

    def _counted(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._lengths is None:
            return args
        lengths = [self._lengths[name].real for name in args.get("trajectories", ())]
        if not lengths:
            return args
        return {**args, "tokens": sum(lengths), "padded": len(lengths) * max(lengths)}

    async def save(self, folder: str) -> dict[str, Any]:
        """For a checkpoint at the end of an update: the real weights, and what both know."""
        real = self._workshop.bench(self._real.save, folder).result()
        return {"real": real, "paper": await self._paper.save(folder)}

    async def restore(self, folder: str, state: Mapping[str, Any]) -> None:
        self._workshop.bench(self._real.restore, folder, state["real"]).result()
        await self._paper.restore(folder, state["paper"])

    async def close(self) -> None:
        """Nothing is held."""
