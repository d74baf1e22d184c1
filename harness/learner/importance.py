"""Importance weights of tokens, and sums over them for the update's statistics.

Source: math.md section 7. Whatever is far from the policy must neither overflow nor poison its
neighbours (0 x inf is NaN): ratios stay in log space and in float64 until they are bounded, and
what a mask leaves out is selected away, never multiplied by 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from harness.config import ImportanceConfig
from harness.learner.client import ScoredTokens
from harness.objectives.ratios import RatioSums

if TYPE_CHECKING:
    from harness.learner.scoring import Packed

LOG_RATIO_LIMIT = 20.0  # before exp, which would overflow; bounds and masks decide far below
_MOST = 1e30  # stands for an infinite log-ratio in a sum, which an opposite infinity would spoil


class Importance:
    """Weights of scored tokens as `config` says; under `one_weight` a trajectory's tokens share
    their mean. `sums` are those of harness.objectives.ratios.RatioSums, in its order, since they
    were last taken; None where no token was measured."""

    def __init__(self, config: ImportanceConfig, one_weight: bool = False) -> None:
        self._config = config
        self._one_weight = one_weight
        self.sums: torch.Tensor | None = None

    def weights(
        self, rows: Sequence[ScoredTokens], packed: Packed, logprobs_N: torch.Tensor, measure: bool
    ) -> torch.Tensor:
        """The weight of each action token, from its detached log-probability under the policy that
        learns. A token that this policy cannot make has ratio 0, and so has a trajectory with one;
        one that the engine could not make has ratio e^20. NaN stays NaN: an update that it reaches
        is refused."""
        log_ratio_N = log_ratios(logprobs_N, behaviour(rows, logprobs_N.device))
        if self._config.level == "sequence":
            log_ratio_N = packed.sums(log_ratio_N)
        ratio_N = log_ratio_N.clamp(max=LOG_RATIO_LIMIT).exp()
        low, high = self._config.low or 0.0, self._config.high or 0.0
        outside_N = (ratio_N < low) | (ratio_N > high)
        if self._config.kind == "truncate":
            weights_N = ratio_N.clamp(max=high)
        else:
            weights_N = torch.where(outside_N, 0.0, ratio_N)
        if self._one_weight:
            weights_N = packed.sums(weights_N) / packed.sums(torch.ones_like(weights_N))
        if measure:
            self._measure(ratio_N, weights_N, outside_N)
        return weights_N.to(logprobs_N.dtype)

    def take(self) -> RatioSums | None:
        """Give the sums away and begin anew."""
        taken, self.sums = self.sums, None
        return None if taken is None else RatioSums(*taken.tolist())

    def _measure(
        self, ratio_N: torch.Tensor, weights_N: torch.Tensor, outside_N: torch.Tensor
    ) -> None:
        """A few numbers, which stay on the device until they are taken."""
        tokens = torch.ones_like(ratio_N)
        each = torch.stack([tokens, ratio_N, weights_N, weights_N.square(), outside_N.double()])
        new = torch.cat([each.sum(1), ratio_N.max()[None]])
        if self.sums is not None:
            new[:-1] += self.sums[:-1]
            new[-1] = torch.maximum(new[-1], self.sums[-1])
        self.sums = new


def behaviour(rows: Sequence[ScoredTokens], device: torch.device) -> torch.Tensor:
    """The engine's log-probabilities of the action tokens, row by row, in float64. Raises
    ValueError where a row has none."""
    values = [
        b
        for r in rows
        for b, m in zip(r.behaviour_logprobs_T or (), r.action_mask_T, strict=True)
        if m
    ]
    return torch.tensor(values, dtype=torch.float64, device=device)


def log_ratios(logprobs_N: torch.Tensor, behaviour_N: torch.Tensor) -> torch.Tensor:
    """log proximal - log behaviour in float64, -inf where the policy that learns cannot make the
    token (whatever the engine thought), and no +inf."""
    own_N = logprobs_N.double()
    difference_N = (own_N - behaviour_N).clamp(max=_MOST)
    return torch.where(own_N == -math.inf, -math.inf, difference_N)
