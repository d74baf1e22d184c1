"""The parity certificate of a run: every so many updates, the update once more, synchronously.

Source: math.md section 6. Before its optimizer step the schedule's update is set aside; the same
trajectories at the same weights are accumulated with their final advantages as the synchronous
schedule would, and then with rows permuted and packed otherwise: the control. Where an agent's
context was rewritten each sequence is a row: a trajectory of several may fill a pass by itself, and
whole it would leave nothing to permute but a few sums. The time this takes is outside the budget,
idle and per-update figures (`time.parity_s`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from harness.config import ParityConfig
from harness.objectives.grpo import Grpo
from harness.protocols import Batch, Learner, ParityFigures, Trajectory
from harness.sequences import padded, spans

GRADIENT_FACTOR = 3.0  # the streamed error may be this many times the control
GAP_FACTOR = 5.0
FEWEST_ROWS = 3  # two rows have one sum, in whatever order: no control
COLUMNS = tuple(ParityFigures.__dataclass_fields__)


def apart(trajectory: Trajectory) -> list[Trajectory]:
    """Its sequences as trajectories of their own and of its name, each of whose tokens weighs what
    it does in the whole; for an objective in which that does not depend on the others."""
    if not trajectory.rewritten_at:
        return [trajectory]
    mask_T, teacher = trajectory.action_mask_T, trajectory.teacher
    made: list[Trajectory] = []
    for start, end in spans(trajectory):
        acted = sum(mask_T[:start]), sum(mask_T[:end])
        part = replace(
            trajectory,
            tokens_T=trajectory.tokens_T[start:end],
            action_mask_T=mask_T[start:end],
            behaviour_logprobs_T=trajectory.behaviour_logprobs_T[start:end],
            teacher=teacher and teacher.cut(*acted),
            rewritten_at=[],
            part_of=trajectory.action_tokens,
        )
        made.append(part)
    return made


def pack_permuted(
    trajectories: Sequence[Trajectory], chunk_tokens: int, seed: int
) -> list[list[Trajectory]]:
    """Rows in random order, in chunks of random sizes of at most `chunk_tokens` padded tokens (or a
    single row)."""
    generator = random.Random(seed)
    rows = sorted(trajectories, key=lambda t: t.trajectory_id)
    generator.shuffle(rows)
    chunks: list[list[Trajectory]] = []
    bound = 0.0
    for row in rows:
        together = [*chunks[-1], row] if chunks else []
        if together and padded(together) <= bound:
            chunks[-1] = together
        else:
            chunks.append([row])
            bound = generator.uniform(0.2, 1.0) * chunk_tokens
    return chunks


def holds(figures: ParityFigures) -> bool | None:
    """Whether one checked update is within its limits; None where it checked nothing. A control of
    0 checked nothing that could differ, and does not hold."""
    error, control = figures.gradient_relative_error, figures.control_relative_error
    gap, control_gap = figures.parameter_gap, figures.control_parameter_gap
    if error is None or control is None or gap is None or control_gap is None:
        return None
    return control > 0 and error <= GRADIENT_FACTOR * control and gap <= GAP_FACTOR * control_gap


def describe(figures: ParityFigures, update: int) -> str:
    """A checked update in one line."""
    verdict = "holds" if holds(figures) else "DOES NOT HOLD"
    return (
        f"parity at update {update}: gradient {figures.gradient_relative_error:.1e} (control "
        f"{figures.control_relative_error:.1e}), parameter gap {figures.parameter_gap:.1e} "
        f"(control {figures.control_parameter_gap:.1e}): {verdict}"
    )


class ParityChecks:
    """The checks of one run. An update without a gradient, or with too few rows for a control,
    checks nothing: the next one is due then."""

    def __init__(self, config: ParityConfig, learner: Learner, objective: Grpo) -> None:
        self._every = config.every
        self._permutations = config.permutations
        self._learner = learner
        self._objective = objective
        self._waited = 0
        self.figures: list[ParityFigures] = []

    def due(self) -> bool:
        """Asked once per update."""
        self._waited += 1
        return 0 < self._every <= self._waited

    async def check(
        self, batch: Batch, normaliser: float, chunks: Sequence[list[Trajectory]], chunk_tokens: int
    ) -> ParityFigures:
        """Recompute the update that the learner has accumulated; `chunks` packs what has a gradient
        as the synchronous schedule does."""
        rows = [t for chunk in chunks for t in chunk]
        if not self._objective.whole:
            rows = [part for t in rows for part in apart(t)]
        if len(rows) < FEWEST_ROWS:
            return ParityFigures(None, None, None, None)
        known = {
            k: a for g in batch.groups for k, (_, a) in self._objective.coefficients(g).items()
        }
        packings = [chunks]
        packings += [pack_permuted(rows, chunk_tokens, seed) for seed in range(self._permutations)]
        await self._learner.parity_begin(normaliser)
        for packing in packings:
            for chunk in packing:
                await self._learner.accumulate(chunk, [known[t.trajectory_id] for t in chunk])
            await self._learner.parity_add()
        figures = await self._learner.parity_end()
        if figures.gradient_relative_error is not None:
            self._waited = 0
            self.figures.append(figures)
        return figures

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"waited": self._waited, "figures": [asdict(f) for f in self.figures]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._waited = state["waited"]
        self.figures = [ParityFigures(**figures) for figures in state["figures"]]

    def summary(self) -> dict[str, object] | None:
        """The `parity` part of summary.json: the largest figures over the checked updates; None for
        a run that checks nothing."""
        if not self._every:
            return None
        largest = {
            name: max((asdict(f)[name] for f in self.figures), default=None) for name in COLUMNS
        }
        return {
            "checked": len(self.figures),
            "held": sum(holds(f) is True for f in self.figures),
            "ok": all(map(holds, self.figures)) if self.figures else None,
            "permutations": self._permutations,
            "gradient_relative_error_max": largest["gradient_relative_error"],
            "control_relative_error_max": largest["control_relative_error"],
            "parameter_gap": largest["parameter_gap"],
            "control_parameter_gap": largest["control_parameter_gap"],
        }
