"""Every verb that a schedule gave its learner, as learner.jsonl: the composition of chunks.

With the run's trajectories.jsonl it determines the weights bit for bit on the same machine,
whatever happened on the clock: harness.relearn plays it back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.protocols import FoldSpec, Interval, Learner, ParityFigures, StepStats, Trajectory


class LoggedLearner:
    """A learner whose verbs are written down before they are carried out. What a parity check
    accumulates is no part of the training and is left out."""

    def __init__(self, learner: Learner, path: Path, resumed: bool = False) -> None:
        """`resumed`: the log goes on where it ends."""
        self._learner = learner
        self._file = path.open("a" if resumed else "w", encoding="utf-8")
        self._checking = False
        self._settled = False

    def _write(self, verb: str, **arguments: Any) -> None:
        if not self._checking:
            self._file.write(json.dumps({"verb": verb, **arguments}, separators=(",", ":")) + "\n")

    async def accumulate(
        self, trajectories: Sequence[Trajectory], coefficients: Sequence[float]
    ) -> None:
        self._write("accumulate", ids=_ids(trajectories), coefficients=list(coefficients))
        await self._learner.accumulate(trajectories, coefficients)

    async def capture(self, trajectories: Sequence[Trajectory]) -> None:
        rewards = [t.reward for t in trajectories]
        self._write("capture", ids=_ids(trajectories), rewards=rewards)
        await self._learner.capture(trajectories)

    async def extend(self, turns: Mapping[int, tuple[Trajectory, int]]) -> None:
        if not self._settled:  # what was measured at start decides which graphs are kept
            self._settled = True
            self._write("turns", settings=await self._learner.turn_settings())
        for trajectory, tokens in turns.values():
            teacher = trajectory.teacher  # which may have scored less by now: passes wait for it
            scored = {} if teacher is None else {"scored": len(teacher.logprobs_N)}
            self._write("extend", id=trajectory.trajectory_id, tokens=tokens, **scored)
        await self._learner.extend(turns)

    async def abandon(self, trajectory_ids: Sequence[str]) -> None:
        self._write("abandon", ids=list(trajectory_ids))
        await self._learner.abandon(trajectory_ids)

    async def turn_settings(self) -> Mapping[str, int | None] | None:
        return await self._learner.turn_settings()

    async def reference_kl(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """Not written down: it becomes part of the rewards, which are."""
        return await self._learner.reference_kl(trajectories)

    async def commit(self, trajectory_id: str, reward: float) -> None:
        self._write("commit", id=trajectory_id, reward=reward)
        await self._learner.commit(trajectory_id, reward)

    async def discard(self, trajectory_ids: Sequence[str]) -> None:
        self._write("discard", ids=list(trajectory_ids))
        await self._learner.discard(trajectory_ids)

    async def fold(self, spec: FoldSpec) -> None:
        self._write("fold", group=spec.group, coefficients=dict(spec.coefficients))
        await self._learner.fold(spec)

    async def drop(self, group: int) -> None:
        self._write("drop", group=group)
        await self._learner.drop(group)

    async def step(self, normaliser: float) -> StepStats:
        stats = await self._learner.step(normaliser)
        self._write("step", normaliser=normaliser, gradient_norm=stats.gradient_norm)
        self._file.flush()
        return stats

    async def parity_begin(self, normaliser: float) -> None:
        self._checking = True
        await self._learner.parity_begin(normaliser)

    async def parity_add(self) -> None:
        await self._learner.parity_add()

    async def parity_end(self) -> ParityFigures:
        figures = await self._learner.parity_end()
        self._checking = False
        return figures

    async def publish(self) -> tuple[str, int]:
        path, version = await self._learner.publish()
        self._write("publish", version=version)
        self._file.flush()
        return path, version

    async def drain_intervals(self) -> list[Interval]:
        return await self._learner.drain_intervals()

    async def close(self) -> None:
        """Ends the log; the learner is ended by whoever started it."""
        self._file.close()


def _ids(trajectories: Sequence[Trajectory]) -> list[str]:
    return [t.trajectory_id for t in trajectories]
