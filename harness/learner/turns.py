"""Turn gradients in a learner: forward passes of trajectories that still run, and what becomes of
them.

Source: math.md section 5. A running trajectory is one sequence, or several where its context was
rewritten. A sequence that nothing prolongs any more is complete: its backward pass runs at once,
where its weights are known and memory allows, and waits in buffers of the trajectory's own, so that
a lost trajectory takes all of its gradient with it. The class that does the passes is named by
dotted path (thundersync.segments).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import (
    _foreach_mul_ as foreach_mul_,  # pyright: ignore[reportPrivateImportUsage]
)
from torch import (
    _foreach_norm as foreach_norm,  # pyright: ignore[reportPrivateImportUsage]
)

from harness.cluster.worker import load
from harness.hardware import available_bytes
from harness.learner.client import ScoredTokens
from harness.learner.scoring import Scorer
from harness.learner.turn_options import TurnOptions
from harness.protocols import TurnCosts, TurnStats, UsageError
from harness.sequences import spans

FREE_SHARE = 0.5  # of the memory that is free at start, where no bound is given
Buffers = list[torch.Tensor]


class Gradients(Protocol):
    """What is asked of the class behind `segments.target`."""

    retain_from: int
    max_live_bytes: int | None
    beside_bytes: int
    live_bytes_peak: int

    @property
    def live_bytes(self) -> int: ...
    def begin(self, trajectory_id: str) -> None: ...
    def extend(
        self, trajectory_id: str, tokens_T: Sequence[int], action_mask_T: Sequence[int], last: bool
    ) -> list[float] | None: ...
    def finish_scored(
        self, trajectory_id: str, score: Callable[..., Any], into: Sequence[Buffers]
    ) -> Any: ...
    def discard(self, trajectory_id: str) -> None: ...
    def end_of_update(self) -> None: ...
    def drain_fallbacks(self) -> list[Any]: ...
    def costs(self) -> TurnCosts: ...


@dataclass
class _Running:
    """A trajectory of which `fed` tokens and `begun` sequences were passed on; `made` is the
    gradient of those that are `done`."""

    fed: int = 0
    begun: int = 0
    done: set[int] = field(default_factory=set)
    made: list[Buffers] | None = None


class Turns:
    """Running trajectories of one learner process. `costs` are what was measured at start."""

    def __init__(
        self,
        gradients: Gradients,
        scorer: Scorer,
        parameters: Sequence[torch.nn.Parameter],
        limit_bytes: int | None = None,
        costs: TurnCosts | None = None,
    ) -> None:
        self._gradients, self._scorer, self.costs = gradients, scorer, costs
        self._parameters, self._limit = parameters, limit_bytes
        self._terms = 2 if scorer.regularised else 1
        self._made_bytes = self._terms * sum(p.numel() * p.itemsize for p in parameters)
        self._running: dict[str, _Running] = {}
        self._told: list[str] = []
        self._trajectories = self._retained = self._rerun = 0

    @property
    def settings(self) -> dict[str, int | None]:
        """What was measured at start and decides which graphs are kept: with these the same turns
        give the same bits."""
        return {"retain_from": self._gradients.retain_from, "max_live_bytes": self._limit}

    def settle(self, settings: Mapping[str, int | None]) -> None:
        """Of a run that goes on: as was measured when it began, on whatever machine it goes on."""
        self._gradients.retain_from = settings["retain_from"] or 0
        self._gradients.max_live_bytes = self._limit = settings["max_live_bytes"]

    def holds(self, trajectory_id: str) -> bool:
        return trajectory_id in self._running

    def extend(self, row: ScoredTokens) -> None:
        """The forward pass of what is new of a running trajectory; `row` is all of it so far."""
        self._take(row, ends=False)

    def gradient(self, row: ScoredTokens) -> list[Buffers]:
        """The score gradient H of a trajectory whose tokens are fixed, and apart from it that of
        the reward-independent terms, where the objective has some. Nothing is held of it then."""
        if self._scorer.distillation is not None:
            self._scorer.distillation.check(row)
        running = self._take(row, ends=True)
        del self._running[row.trajectory_id]
        made, weight = running.made or self._zeros(), self._scorer.weight(row)
        if running.made is not None:
            self._gradients.beside_bytes -= self._made_bytes
        if weight != 1.0:
            for buffers in made:
                foreach_mul_(buffers, weight)
        return made

    def abandon(self, trajectory_ids: Sequence[str]) -> None:
        """Forget trajectories that enter no update."""
        for trajectory_id in trajectory_ids:
            running = self._running.pop(trajectory_id)
            for number in range(running.begun):
                if number not in running.done:
                    self._gradients.discard(f"{trajectory_id}/{number}")
            if running.made is not None:
                self._gradients.beside_bytes -= self._made_bytes

    def end_of_update(self) -> None:
        """Before the optimizer's step: nothing may be under way."""
        self._gradients.end_of_update()
        if self._running:
            names = ", ".join(self._running)
            raise RuntimeError(f"turns of {names} were neither used nor given up")

    def take_stats(self) -> TurnStats:
        """Since the last call."""
        self._hear()
        stats = TurnStats(
            self._trajectories, self._retained, self._rerun, len(self._told),
            self._told[0] if self._told else "", self._gradients.live_bytes_peak,
        )  # fmt: skip
        self._told, self._gradients.live_bytes_peak = [], 0
        self._trajectories = self._retained = self._rerun = 0
        return stats

    # -- one trajectory ----------------------------------------------------------------------------

    def _take(self, row: ScoredTokens, ends: bool) -> _Running:
        if row.trajectory_id not in self._running:
            self._trajectories += 1
        running = self._running.setdefault(row.trajectory_id, _Running())
        parts, score = spans(row), None
        for number, (start, end) in enumerate(parts):
            if number in running.done:
                continue
            name, complete = f"{row.trajectory_id}/{number}", number + 1 < len(parts)
            finishes = ends or (complete and self._may_finish(row, running, end))
            if number == running.begun:
                self._gradients.begin(name)
                running.begun += 1
            if (at := max(start, running.fed)) < end:
                new = row.tokens_T[at:end], row.action_mask_T[at:end]
                self._gradients.extend(name, *new, finishes)
                running.fed = end
            if finishes:
                score = score or self._scorer.in_pieces(row)  # once: it may take a pass of its own
                before = sum(row.action_mask_T[:start])
                self._finish(name, running, score, before)
                running.done.add(number)
        self._hear()
        return running

    def _may_finish(self, row: ScoredTokens, running: _Running, end: int) -> bool:
        """Whether the weights of a complete sequence's tokens are known, and there is room for the
        trajectory's own buffers."""
        if self._scorer.reference is not None:
            return False  # one pass over all of its sequences, at the end
        if self._scorer.distillation is not None:
            scored = 0 if row.teacher is None else len(row.teacher.logprobs_N)
            if scored < sum(row.action_mask_T[:end]):
                return False
        held = self._gradients.live_bytes + self._made_bytes
        return running.made is not None or self._limit is None or held <= self._limit

    def _finish(self, name: str, running: _Running, score: Callable[..., Any], before: int) -> None:
        """The backward pass of a sequence; `before` action tokens are of earlier ones."""

        def terms(first: int, logprobs_NV: torch.Tensor, targets_N: torch.Tensor) -> list[Any]:
            made = score(before + first, logprobs_NV, targets_N)
            return [made.policy] if self._terms == 1 else [made.policy, made.always]

        if running.made is None:
            running.made = self._zeros()
            self._gradients.beside_bytes += self._made_bytes
        done = self._gradients.finish_scored(name, terms, running.made)
        self._retained += done.retained_tokens
        self._rerun += done.rerun_tokens

    def _zeros(self) -> list[Buffers]:
        return [[torch.zeros_like(p) for p in self._parameters] for _ in range(self._terms)]

    def _hear(self) -> None:
        self._told += map(str, self._gradients.drain_fallbacks())


def check_finite(gradients: Buffers, rows: Sequence[ScoredTokens]) -> None:
    """Raises ValueError for a gradient that would poison the update."""
    if not all(map(math.isfinite, foreach_norm(gradients))):
        names = ", ".join(r.trajectory_id for r in rows) or "a peer's trajectories"
        raise ValueError(f"{names}: the gradient is not finite; the update is refused")


class TurnVerbs:
    """A learner's verbs of turns."""

    _turns: Turns | None = None

    if TYPE_CHECKING:  # the learner's own

        def _busy(
            self, name: str, start_s: float, rows: Iterable[ScoredTokens] = (), **args: Any
        ) -> None: ...

    def extend(self, row: ScoredTokens) -> None:
        """The forward pass of the turns that a running trajectory has finished; `row` is all of it
        so far."""
        start_s = time.monotonic()
        self._open_turns().extend(row)
        self._busy("extend", start_s, [row])

    def abandon(self, trajectory_ids: Sequence[str]) -> None:
        self._open_turns().abandon(trajectory_ids)

    def turn_settings(self) -> dict[str, int | None] | None:
        """What decides which graphs are kept; None where no turns are taken."""
        return self._turns and self._turns.settings

    def _open_turns(self) -> Turns:
        if self._turns is None:
            raise ValueError("schedule.release=turn: this learner was not started for turns")
        return self._turns

    def _begun(self, row: ScoredTokens) -> bool:
        return self._turns is not None and self._turns.holds(row.trajectory_id)

    def _finish(self, row: ScoredTokens) -> list[Buffers]:
        """The gradient of a trajectory whose turns were begun, and of its reward-independent
        terms."""
        start_s = time.monotonic()
        made = self._open_turns().gradient(row)
        for gradients in made:
            check_finite(gradients, [row])
        self._busy("finish", start_s, [row])
        return made


def open_turns(
    options: TurnOptions,
    scorer: Scorer,
    parameters: Sequence[torch.nn.Parameter],
    temperature: float,
) -> Turns | None:
    """None for a model whose turns have no exact gradient, where turns are not required. Costs are
    measured where something is to be chosen by them."""
    limit = options.max_live_bytes
    if limit is None:
        limit = int(FREE_SHARE * available_bytes())
    try:
        gradients: Gradients = load(options.target)(
            scorer.model,
            temperature=temperature,
            way="sweep" if options.way == "sweep" else "retain",
            max_live_bytes=limit,
            chunk_tokens=options.chunk_tokens,
            parameters=parameters,
        )
    except UsageError:
        if options.required:
            raise
        return None
    costs = None
    if options.retain_from is not None:
        gradients.retain_from = options.retain_from
    elif options.way == "auto" or not options.required:
        costs = gradients.costs()
        gradients.retain_from = costs.retain_from if options.way == "auto" else 0
    return Turns(gradients, scorer, parameters, limit, costs)
