"""From hidden states to what the vocabulary says of action tokens: all of a pass's logits at once,
or a few tokens' at a time, which are made again in the backward pass and then forgotten.

Logits of a long pass over a large vocabulary are by far the largest thing in it (5 x tokens x
vocabulary x 4 bytes, docs/policies.md), and a token's own log-probability needs none of the
others'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Words:
    """Of N action tokens: their log-probabilities; the entropy of each one's distribution, where
    that was asked for; and those distributions, where they are held."""

    logprobs_N: torch.Tensor
    entropy_N: torch.Tensor | None = None
    logprobs_NV: torch.Tensor | None = None


def whole(logprobs_NV: torch.Tensor, targets_N: torch.Tensor, entropy: bool) -> Words:
    """From distributions that are held."""
    return Words(*_of(logprobs_NV, targets_N, entropy), logprobs_NV)


def in_slices(
    distributions: Callable[[torch.Tensor], torch.Tensor],
    hidden_ND: torch.Tensor,
    targets_N: torch.Tensor,
    tokens: int,
    entropy: bool,
) -> Words:
    """The same from `distributions`, (n, hidden) -> log-probabilities (n, V), of at most `tokens`
    positions at a time: no more are ever held, in either pass."""

    def work(hidden_nD: torch.Tensor, targets_n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = _of(distributions(hidden_nD), targets_n, entropy)
        return tuple(f for f in found if f is not None)

    made = [
        checkpoint(work, h, t, use_reentrant=False, preserve_rng_state=False)
        for h, t in zip(hidden_ND.split(tokens), targets_N.split(tokens), strict=True)
    ]
    return Words(*(torch.cat(parts) for parts in zip(*made, strict=True)))


def _of(
    logprobs_NV: torch.Tensor, targets_N: torch.Tensor, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    logprobs_N = logprobs_NV.gather(1, targets_N[:, None])[:, 0]
    return logprobs_N, -(logprobs_NV.exp() * logprobs_NV).sum(-1) if entropy else None
