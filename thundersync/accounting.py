"""What a ledger holds, counted in gradients: bytes without a walk over tensors.

Every gradient of a learner has the same shapes, so a count and three sizes are exact. A gradient is
pending in the narrower of its own dtype and the ledger's; a buffer has the ledger's (math.md
section 2).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Account:
    """Counts and peaks. `dtype` is the ledger's, None for the gradient's own."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        self._dtype = dtype
        self.measured = False
        self.pending = self.stored = 0
        self.buffers_peak = self.bytes_peak = 0

    def measure(self, first: Sequence[torch.Tensor], elsewhere: bool) -> None:
        """`first` gives shapes, dtype and device of every gradient; `elsewhere`: what is taken over
        leaves the gradient's memory."""
        own = first[0].dtype
        self.stored_dtype = own if self._dtype is None else self._dtype
        self.pending_dtype = min(own, self.stored_dtype, key=lambda d: d.itemsize)
        elements = sum(t.numel() for t in first)
        self._largest = max(t.numel() for t in first)
        self._pending_bytes = elements * self.pending_dtype.itemsize
        self._stored_bytes = elements * self.stored_dtype.itemsize
        # A gradient that is narrowed in its own memory lies there twice while it is taken over.
        narrowed = self.pending_dtype != own and not elsewhere
        self._source_bytes = elements * own.itemsize if narrowed else 0
        self._on_cpu = elsewhere or first[0].device.type == "cpu"
        self.measured = True

    @property
    def swaps(self) -> bool:
        """A pending gradient becomes a buffer as it is."""
        return self.pending_dtype == self.stored_dtype

    def took(self, gradients: int) -> None:
        """So many gradients are pending now."""
        self.pending += gradients
        self._note(gradients * self._source_bytes)

    def settled(self, gradients: int, buffers: int) -> None:
        """So many gradients are not pending any more; `buffers` of them became buffers, swapped in
        or widened, the others were added to one."""
        if self.swaps:
            self.pending -= gradients
            self.stored += buffers
        else:
            self.stored += buffers
            self._note(0 if buffers == gradients else self._mixed(self.stored_dtype))
            self.pending -= gradients

    def freed(self, gradients: int, buffers: int) -> None:
        """Discarded or dropped."""
        self.pending -= gradients
        self.stored -= buffers

    def folding(self, buffers: int, total: torch.dtype) -> None:
        """A group's buffers go into a total of that dtype, and are free then."""
        if total != self.stored_dtype:
            self._note(self._mixed(total))
        self.stored -= buffers

    def reset_peaks(self) -> None:
        self.buffers_peak = self.bytes_peak = 0

    def _mixed(self, wide: torch.dtype) -> int:
        """Bytes that an add with mixed dtypes takes: on a CPU torch widens one tensor at a time."""
        return self._largest * wide.itemsize if self._on_cpu else 0

    def _note(self, more_bytes: int) -> None:
        held = self.stored * self._stored_bytes + self.pending * self._pending_bytes
        self.bytes_peak = max(self.bytes_peak, held + more_bytes)
        self.buffers_peak = max(self.buffers_peak, self.stored + self.pending)
