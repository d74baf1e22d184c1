"""Sampling that depends on nothing but a request's seed, its position and its logits.

One counter-based uniform number per token (splitmix64 over seed and position) is looked up in the
cumulated probabilities. Neighbours in a batch and order of arrival have no part in it, as far as
the logits are equal: their last bits can still differ with the shape of the batch.
"""

from __future__ import annotations

import numpy as np
import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser (Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seeds_M: np.ndarray, positions_M: np.ndarray) -> np.ndarray:
    """One number in [0, 1) per (seed, position), both uint64; 53 random bits each."""
    stream = _mix(seeds_M * _GOLDEN + _GOLDEN)
    bits = _mix(stream + (positions_M + np.uint64(1)) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sample(
    logits_MV: torch.Tensor, temperatures_M: torch.Tensor, uniforms_M: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (M,) and the log-probabilities (M, V) of the distribution they came from.

    Temperature 0 takes the likeliest token; its log-probabilities are those at temperature 1.
    """
    greedy = temperatures_M == 0
    scale = torch.where(greedy, 1.0, temperatures_M)
    logprobs_MV = torch.log_softmax(logits_MV / scale[:, None], -1)
    # float64: rounding of a long sum must not move the boundaries between tokens.
    cumulated = logprobs_MV.exp().cumsum(-1, dtype=torch.float64)
    target = uniforms_M[:, None] * cumulated[:, -1:]
    tokens = torch.searchsorted(cumulated, target, right=True)[:, 0]
    tokens = tokens.clamp_max_(logits_MV.shape[1] - 1)
    if greedy.any():
        tokens = torch.where(greedy, logits_MV.argmax(-1), tokens)
    return tokens, logprobs_MV
