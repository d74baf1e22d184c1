"""Zeros that the kernel may back by large pages."""

import mmap

import pytest
import torch

from harness.policy import pages


@pytest.mark.parametrize("large", [True, False])
def test_zeros_are_ones_own_and_can_be_written(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not large:  # a system that has none
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    first, second = pages.zeros((3, 5, 7)), pages.zeros((3, 5, 7))
    assert first.shape == (3, 5, 7) and first.dtype == torch.float32 and first.is_contiguous()
    first.add_(1)
    assert first.sum() == 105 and second.sum() == 0
