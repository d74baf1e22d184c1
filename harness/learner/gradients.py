"""How gradients are made and summed where every rank holds all weights: one rank, or several (ddp).

A backward is a rank's own: nothing crosses ranks before the optimizer step, which takes one
all-reduce of what the rank accumulated and folded. Source: math.md sections 2 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import (
    _foreach_add_ as foreach_add_,  # pyright: ignore[reportPrivateImportUsage]
)
from torch import (
    _foreach_mul_ as foreach_mul_,  # pyright: ignore[reportPrivateImportUsage]
)
from torch import (
    _foreach_norm as foreach_norm,  # pyright: ignore[reportPrivateImportUsage]
)

from harness.learner import ranks
from harness.learner.client import ScoredTokens
from harness.learner.placement import Placement
from harness.learner.scoring import Scorer
from harness.policy import lora

Buffers = list[torch.Tensor]
Captured = tuple[Buffers, Buffers | None]


@dataclass
class Total:
    """What an update has so far. `accumulated` came straight from backward passes, `folded` out of
    the ledger; they are the same buffers where both have the parameters' shapes."""

    accumulated: Buffers | None = None
    folded: Buffers | None = None


class Replicated:
    """All weights on every rank. `dtype` is the ledger's and the total's."""

    joint = False  # whether a backward is an act of all ranks

    def __init__(self, scorer: Scorer, placement: Placement, dtype: torch.dtype) -> None:
        self._scorer = scorer
        self._placement = placement
        self._dtype = dtype
        self.parameters = [p for p in scorer.model.parameters() if p.requires_grad]
        if placement.ranks > 1:
            ranks.join(placement, self.parameters[0].device)

    @property
    def buffer_elements(self) -> int:
        """Of one ledger buffer on this rank."""
        return sum(p.numel() for p in self.parameters)

    # -- gradients ---------------------------------------------------------------------------------

    def weighted(self, rows: Sequence[ScoredTokens], coefficients: Sequence[float]) -> Buffers:
        """The whole objective's gradient of `rows`, in one backward."""
        score = self._scorer(rows, coefficients)
        if score is None:
            return self._backward(None)[0]
        always = score.always
        return self._backward(score.policy if always is None else score.policy + always)[0]

    def captured(self, rows: Sequence[ScoredTokens]) -> list[Captured]:
        """The score gradient H of `rows` and, apart from it, that of the reward-independent terms
        (None where the objective has none)."""
        score = self._scorer(rows, [1.0] * len(rows))
        if score is None:
            return [(self._backward(None)[0], None)]
        if score.always is None:
            return [(self._backward(score.policy)[0], None)]
        gradients, always = self._backward(score.policy, score.always)
        return [(gradients, always)]

    def spread(self, captured: list[Captured]) -> list[Captured]:
        """What this rank's ledger keeps of what was captured: here, its own."""
        return captured

    def reference_kl(self, row: ScoredTokens) -> float:
        """log policy - log reference of a trajectory, without a gradient."""
        return self._scorer.reference_kl(row)

    def _backward(self, *terms: torch.Tensor | None) -> list[Buffers]:
        """A fresh gradient of each term, given away to the caller; zeros for None. The terms may
        share one graph, which is freed with the last."""
        present = [t for t in terms if t is not None]
        made: list[Buffers] = []
        for term in terms:
            for parameter in self.parameters:
                parameter.grad = None
            if term is not None:
                term.backward(retain_graph=term is not present[-1])
            made.append(
                [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
            )
        for parameter in self.parameters:
            parameter.grad = None
        return made

    # -- the update's total ------------------------------------------------------------------------

    def add(self, total: Total, gradients: Buffers, coefficient: float) -> None:
        """Add coefficient x `gradients`, as `weighted` made them."""
        if total.accumulated is not None:
            foreach_add_(total.accumulated, gradients, alpha=coefficient)
            return
        total.accumulated = [g.to(self._dtype) for g in gradients]
        if coefficient != 1.0:
            foreach_mul_(total.accumulated, coefficient)

    def fold_into(self, total: Total) -> Buffers:
        """The buffers that a ledger folds a group into."""
        if total.accumulated is None:
            total.accumulated = self.zeros()
        return total.accumulated

    def zeros(self) -> Buffers:
        """An update without a gradient."""
        return [torch.zeros_like(p, dtype=self._dtype) for p in self.parameters]

    def summed(self, total: Total) -> Buffers | None:
        """The update over all ranks, in the parameters' shapes; None where no rank has any. One
        all-reduce, whose last element counts the ranks that have one. `total` stays as it is."""
        if self._placement.ranks == 1:
            return total.accumulated
        own = total.accumulated
        held = torch.tensor([float(own is not None)], dtype=self._dtype)
        vector = ranks.flat([*(own or self.zeros()), held.to(self.parameters[0].device)])
        ranks.all_reduce(vector)
        return ranks.like(vector, self.parameters) if vector[-1] > 0 else None

    def assign(self, update: Buffers, divisor: float) -> None:
        """`update` / `divisor` as the parameters' gradients."""
        for parameter, part in zip(self.parameters, update, strict=True):
            parameter.grad = (part / divisor).to(parameter.dtype)

    def clip(self, limit: float) -> float:
        """Bound the norm of the parameters' gradients over all ranks; returns what it was."""
        return float(torch.nn.utils.clip_grad_norm_(self.parameters, limit))

    def norm(self, buffers: Sequence[torch.Tensor]) -> float:
        """Euclidean norm of an update or of a difference of weights."""
        return math.sqrt(math.fsum(float(n) ** 2 for n in foreach_norm(list(buffers))))

    def weights(self) -> dict[str, torch.Tensor] | None:
        """The weights to publish; None on the ranks that do not."""
        return lora.plain_weights(self._scorer.model) if self._placement.rank == 0 else None


class SpreadLedger(Replicated):
    """All weights on every rank, a share of every ledger buffer: rank s keeps shard s of each
    rank's gradients. Then a step takes a reduce-scatter of what was accumulated and an all-gather
    of the total."""

    @property
    def buffer_elements(self) -> int:
        count = self._placement.ranks
        return -(-super().buffer_elements // count)

    def spread(self, captured: list[Captured]) -> list[Captured]:
        """This rank's shard of every rank's gradients, in order of rank."""
        ((gradients, always),) = captured
        gradients = self._exchanged(gradients)
        if not self._scorer.regularised:
            return [([g], None) for g in gradients]
        always = self._exchanged(self._backward(None)[0] if always is None else always)
        return [([g], [a]) for g, a in zip(gradients, always, strict=True)]

    def _exchanged(self, gradients: Buffers) -> Buffers:
        return ranks.exchange(ranks.flat(gradients, self._placement.ranks))

    def fold_into(self, total: Total) -> Buffers:
        if total.folded is None:
            like = self.parameters[0]
            total.folded = [
                torch.zeros(self.buffer_elements, dtype=self._dtype, device=like.device)
            ]
        return total.folded

    def summed(self, total: Total) -> Buffers | None:
        """Every rank has seen the same verbs, so that all have accumulated, or none."""
        if total.accumulated is None and total.folded is None:
            return None
        (shard,) = self.fold_into(total)
        if total.accumulated is not None:
            vector = ranks.flat(total.accumulated, self._placement.ranks)
            shard = shard + ranks.reduce_scatter(vector)
        return ranks.like(ranks.all_gather(shard), self.parameters)


def together(captured: list[Captured], apart: Sequence[list[Buffers]]) -> list[Captured]:
    """What one pass captured and what was made of single trajectories (their gradient and, where
    there is one, that of the reward-independent terms), as one capture."""
    for made in apart:
        gradients, always = made[0], made[1] if len(made) > 1 else None
        if not captured:
            captured = [(gradients, always)]
            continue
        ((own, own_always),) = captured
        foreach_add_(own, gradients)
        if own_always is not None and always is not None:
            foreach_add_(own_always, always)
        captured = [(own, always if own_always is None else own_always)]
    return captured


def layout(scorer: Scorer, placement: Placement, dtype: torch.dtype) -> Replicated:
    """How gradients are made and summed at a placement; ranks meet here."""
    if placement.ranks > 1 and placement.parallel == "fsdp":
        from harness.learner.fully_sharded import FullySharded

        return FullySharded(scorer, placement, dtype)
    return (SpreadLedger if placement.together else Replicated)(scorer, placement, dtype)
