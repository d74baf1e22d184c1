"""Memory in large pages where the system has them: one step reads tens of megabytes of keys and
values, in pieces that each begin on another small page."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch


def zeros(shape: Sequence[int]) -> torch.Tensor:
    """float32 zeros. On Linux the kernel is asked for pages of 2 MiB; it may decline."""
    count = math.prod(shape)
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape)
    memory = mmap.mmap(-1, max(1, 4 * count), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32, count=count).view(*shape)
