"""Products with a decoder's weights, which often meet few rows.

Such a product is a matter of reading the weight. oneDNN, with the weight in its own blocked layout,
reads one that no cache holds up to twice as fast as MKL does; with many rows, or with a small
weight, MKL is as fast or faster (docs/engine.md). So a large weight is kept in both layouts.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from harness.policy.size import LARGE_WEIGHT

ONE_DNN = torch.backends.mkldnn.is_available()
FEW = 12  # rows


class _Blocked:
    """A weight (out, in) for up to `few` rows; for none where it is small."""

    def __init__(self, weight_OI: torch.Tensor, few: int) -> None:
        self.few = few if ONE_DNN and weight_OI.numel() >= LARGE_WEIGHT else 0
        if self.few:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), few)

    def __call__(self, rows_NI: torch.Tensor) -> torch.Tensor:
        given = rows_NI.contiguous()
        return torch.ops.mkldnn._linear_pointwise(given, self._weight, None, "none", [], "")


class Product:
    """Rows (N, in) times a weight (out, in): (N, out)."""

    def __init__(self, weight_OI: torch.Tensor, few: int = FEW) -> None:
        self._weight_OI, self._blocked = weight_OI, _Blocked(weight_OI, few)

    def __call__(self, rows_NI: torch.Tensor) -> torch.Tensor:
        if rows_NI.shape[0] <= self._blocked.few:
            return self._blocked(rows_NI)
        return F.linear(rows_NI, self._weight_OI)


class Added:
    """A sum (N, out) and rows (N, in) times a weight (out, in): a new sum."""

    def __init__(self, weight_OI: torch.Tensor) -> None:
        self._weight_IO, self._blocked = weight_OI.t().contiguous(), _Blocked(weight_OI, FEW)

    def __call__(self, sum_NO: torch.Tensor, rows_NI: torch.Tensor) -> torch.Tensor:
        if rows_NI.shape[0] <= self._blocked.few:
            return self._blocked(rows_NI).add_(sum_NO)
        return torch.addmm(sum_NO, rows_NI, self._weight_IO)
