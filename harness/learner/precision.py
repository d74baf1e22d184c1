"""What `learner.dtype` means: in which precision weights are kept, and passes are computed.

float32 and float64 compute as they keep. bfloat16 computes passes in bfloat16 (torch.autocast:
products in bfloat16, norms, softmax and log-probabilities in float32) from weights that are kept,
and gradients that are summed, in float32: the optimizer, the ledger and the update's total never
see a bfloat16 sum.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

DTYPES = ("float32", "float64", "bfloat16")


def weights_dtype(name: str) -> torch.dtype:
    """Of the weights, of their gradients, and of the optimizer's state."""
    return torch.float32 if name == "bfloat16" else getattr(torch, name)


def computing(name: str, device: torch.device, again: bool) -> AbstractContextManager[Any]:
    """Around a forward pass; the backward pass follows by itself. Where layers run `again` in it,
    their weights' rounded copies are made again too, and not held in between."""
    if name != "bfloat16":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=not again)
