"""One group through the gradient ledger, and the adds that it needs without the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import (
    _foreach_add_ as add_,  # pyright: ignore[reportPrivateImportUsage]
)
from torch import (
    _foreach_copy_ as copy_,  # pyright: ignore[reportPrivateImportUsage]
)

from harness.cluster.worker import load
from harness.policy.load import load_for_training, resolve

LEDGER = "thundersync.ledger:GradientLedger"  # harness may not import thundersync
Buffers = list[torch.Tensor]


def tiny_shapes() -> list[torch.Size]:
    """The default policy's 46 tensors, 984,448 parameters: they stay in the processor's cache."""
    return [p.shape for p in load_for_training(resolve("tiny"), torch.float32).parameters()]


class LedgerWork:
    """A binary group of `size` trajectories. It costs `size` adds: size - 2 into its two buckets, 2
    in the fold; beyond them the ledger looks once at the group's sum for values that are not
    finite, and does its bookkeeping. `refill` comes before each of the others: the ledger sums in
    the place of what it is given."""

    def __init__(self, shapes: Sequence[torch.Size], size: int) -> None:
        self.elements = sum(s.numel() for s in shapes)
        self.size = size
        draw = torch.Generator().manual_seed(0)
        self._source = [torch.randn(s, generator=draw) for s in shapes]
        self._gradients: list[Buffers] = [[torch.empty(s) for s in shapes] for _ in range(size)]
        self.total: Buffers = [torch.zeros(s) for s in shapes]
        self._rewards = [float(i % 2) for i in range(size)]
        self._known = {str(i): (r, 1.0 if r else -1.0) for i, r in enumerate(self._rewards)}
        self._ledger: Any = load(LEDGER)("auto")

    def refill(self) -> None:
        for gradient in self._gradients:
            copy_(gradient, self._source)

    def streamed(self) -> None:
        """Capture, commit and fold."""
        ledger = self._ledger
        for i, gradient in enumerate(self._gradients):
            ledger.capture(0, [str(i)], list(gradient))
            ledger.commit([str(i)], self._rewards[i])
        ledger.fold(0, self._known, self.total)
        ledger.end_of_update()

    def same_adds(self) -> None:
        """What the ledger adds, without the ledger."""
        gradients = self._gradients
        for i in range(2, self.size):
            add_(gradients[i % 2], gradients[i])
        add_(gradients[1], gradients[0], alpha=-1.0)
        add_(self.total, gradients[1])

    def one_accumulator(self) -> None:
        """One buffer that stays in the cache, where the ledger's two buckets take turns."""
        for gradient in self._gradients:
            add_(self.total, gradient)

    def copied(self) -> None:
        for gradient in self._gradients:
            copy_(self.total, gradient)
