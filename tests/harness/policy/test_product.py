"""Products with weights in two layouts are products."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from harness.policy import product
from harness.policy.product import FEW, Added, Product
from harness.policy.size import LARGE_WEIGHT

LARGE, SMALL = (768, 384), (256, 128)


@pytest.mark.parametrize("rows", [1, FEW, FEW + 1, 300])
@pytest.mark.parametrize("shape", [LARGE, SMALL])
def test_they_are_products_whatever_their_layout(shape: tuple[int, int], rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    weight_OI = torch.randn(shape, generator=draw)
    rows_NI = torch.randn(2 * rows, shape[1], generator=draw)[::2]  # not contiguous
    sum_NO = torch.randn(rows, shape[0], generator=draw)
    before = sum_NO.clone()
    expected = F.linear(rows_NI.double(), weight_OI.double())
    for got, exact in (
        (Product(weight_OI)(rows_NI), expected),
        (Added(weight_OI)(sum_NO, rows_NI), expected + sum_NO.double()),
    ):
        assert float((got - exact).norm() / exact.norm()) < 1e-6
    assert torch.equal(sum_NO, before)


def test_large_weights_meet_few_rows_in_blocks_and_small_ones_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert LARGE[0] * LARGE[1] >= LARGE_WEIGHT > SMALL[0] * SMALL[1]
    assert product.ONE_DNN  # torch's builds for processors have it
    blocked: list[int] = []
    real = product._Blocked.__call__

    def counted(self: product._Blocked, rows_NI: torch.Tensor) -> torch.Tensor:
        blocked.append(len(rows_NI))
        return real(self, rows_NI)

    monkeypatch.setattr(product._Blocked, "__call__", counted)
    for shape, few in ((LARGE, 40), (SMALL, 40)):
        made = Product(torch.ones(shape), few)
        for rows in (1, 40, 41):
            made(torch.ones(rows, shape[1]))
    assert blocked == [1, 40]
