"""The learner's side of a parity check: updates that are computed, compared and thrown away.

Source: math.md section 6. While a bench is open the schedule's own update is set aside; weights,
optimizer and total are the same after as before, bit for bit.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch

from harness.protocols import ParityFigures

if TYPE_CHECKING:
    from harness.learner.torch_learner import TorchLearner

Buffers = list[torch.Tensor]


class ParityBench:
    """Compares updates at the same weights, each already accumulated in `learner` and divided by
    `normaliser`. The first that `add` takes is the synchronous reference; further ones are the same
    update with rows permuted: the control. Holds three gradients and three sets of weights."""

    def __init__(self, learner: TorchLearner, normaliser: float) -> None:
        self._learner, self._normaliser = learner, normaliser
        self._weights = [p.detach().clone() for p in learner.parameters]
        self._streamed = learner.update_direction(normaliser)
        self._streamed_weights = self._stepped()
        self._kept = learner.set_aside()
        self._reference: Buffers | None = None
        self._reference_weights: Buffers = []
        self._controls: list[tuple[float, float]] = []

    def add(self) -> None:
        """Take the accumulated update, and clear it."""
        direction = self._learner.update_direction(self._normaliser)
        weights = self._stepped()
        self._learner.set_aside()
        if self._reference is None:
            self._reference, self._reference_weights = direction, weights
        else:
            self._controls.append(self._figures(direction, weights))

    def end(self) -> ParityFigures:
        """Put the schedule's update back. None for the figures where the reference is zero: such an
        update checks nothing."""
        self._learner.put_back(self._kept)
        if self._reference is None or self._learner.norm(self._reference) == 0.0:
            return ParityFigures(None, None, None, None)
        error, gap = self._figures(self._streamed, self._streamed_weights)
        errors, gaps = zip(*self._controls, strict=True)
        return ParityFigures(error, max(errors), gap, max(gaps))

    def _stepped(self) -> Buffers:
        """The weights one optimizer step along the accumulated update; then all is as before."""
        learner = self._learner
        state = copy.deepcopy(learner.optimizer.state_dict())
        learner.apply(self._normaliser)
        stepped = [p.detach().clone() for p in learner.parameters]
        with torch.no_grad():
            for parameter, weight in zip(learner.parameters, self._weights, strict=True):
                parameter.copy_(weight)
        learner.optimizer.load_state_dict(state)
        return stepped

    def _figures(self, direction: Buffers, weights: Buffers) -> tuple[float, float]:
        """(relative gradient error, parameter gap) against the reference."""
        norm, reference = self._learner.norm, self._reference or []
        moved = norm(_difference(self._reference_weights, self._weights))
        return (
            norm(_difference(direction, reference)) / norm(reference),
            norm(_difference(weights, self._reference_weights)) / moved if moved else 0.0,
        )


class ParityVerbs:
    """A learner's verbs of a check."""

    _bench: ParityBench | None = None

    def parity_begin(self, normaliser: float) -> None:
        """Set the accumulated update aside and open a bench; `accumulate` then fills others."""
        self._bench = ParityBench(cast("TorchLearner", self), normaliser)

    def parity_add(self) -> None:
        """Compare the update accumulated since, and clear it."""
        self._open_bench().add()

    def parity_end(self) -> ParityFigures:
        """Put the set-aside update back."""
        figures = self._open_bench().end()
        self._bench = None  # its gradients and weights are as large as the model
        return figures

    def _open_bench(self) -> ParityBench:
        if self._bench is None:
            raise ValueError("parity: no check was begun")
        return self._bench


def _difference(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> Buffers:
    """In float64: the differences are near the rounding of the operands."""
    return [a.double() - b.double() for a, b in zip(left, right, strict=True)]
