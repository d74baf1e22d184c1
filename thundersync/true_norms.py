"""Norms that stay in their input's dtype, for checks in float64.

Stock RMSNorm passes through float32, which would limit a check to 1e-7. Nothing else in a Llama or
Qwen3 depends on it: rotary angles are made in float32, but from a token's position alone, and sdpa
computes its softmax in the dtype of its input.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import rms_norm


class TrueNorm(nn.Module):
    """RMSNorm in its input's own dtype."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self._epsilon = epsilon

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, self.weight.shape, self.weight, self._epsilon)


def use_true_norms(model: nn.Module) -> None:
    """Replace every RMSNorm of a transformers model, sharing its weight. Raises TypeError for one
    that is built otherwise, ValueError where there is none: nothing would be true then."""
    replaced = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                weight, epsilon = child.weight, child.variance_epsilon
                if not isinstance(weight, nn.Parameter) or not isinstance(epsilon, float):
                    raise TypeError(f"{type(child).__name__} is no RMSNorm that is known here")
                setattr(module, name, TrueNorm(weight, epsilon))
                replaced += 1
    if not replaced:
        raise ValueError(f"{type(model).__name__}: no RMSNorm to replace; take a Llama or Qwen3")
