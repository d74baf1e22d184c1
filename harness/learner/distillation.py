"""The distillation term of each generated token: what on-policy distillation maximises there.

Source: math.md section 5. With the sampled token alone its gradient is a x gradient of log pi(y),
a = -(log pi(y) - log q(y)) detached, or the discounted sum of a over this and later tokens of the
trajectory. Over the teacher's K likeliest tokens it is minus the reverse KL between two
distributions over K + 1 outcomes, the last being all other tokens: without that one the policy
could lower the sum by leaving the teacher's tokens. It never exceeds the KL over the vocabulary,
and is that KL where K is the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from harness.config import ObjectiveConfig
from harness.learner.client import ScoredTokens
from harness.protocols import TeacherScores

# What a teacher may leave to all other tokens, at least: 1 - the sum of float32 probabilities is
# noise below it.
LEAST_REST = 1e-6
MOST = 1e30  # a token that the policy cannot make any more may have weight 0, and 0 x inf is NaN


class Distillation:
    """Terms of scored rows as `objective` says."""

    def __init__(self, objective: ObjectiveConfig) -> None:
        self._top_k = objective.top_k
        self._discount = objective.discount

    def __call__(
        self,
        rows: Sequence[ScoredTokens],
        logprobs_N: torch.Tensor,
        logprobs_NV: torch.Tensor | None,
    ) -> torch.Tensor:
        """A term with a graph for each action token, row by row; `logprobs_NV` are needed for
        objective.top_k alone. Raises ValueError for a row whose
        tokens are not all scored: it must have been lost before."""
        scores = [_scores(row, self._top_k) for row in rows]
        if self._top_k:
            assert logprobs_NV is not None, "learner.logits_tokens is refused with top_k"
            return self._over_top(scores, logprobs_NV)
        teacher_N = _flat([s.logprobs_N for s in scores], logprobs_N)
        advantages_N = (teacher_N - logprobs_N.detach()).clamp(max=MOST)
        if self._discount:
            advantages_N = self._discounted(advantages_N, [len(s.logprobs_N) for s in scores])
        return advantages_N * logprobs_N

    def check(self, row: ScoredTokens) -> None:
        """Raises ValueError for a row whose tokens are not all scored."""
        _scores(row, self._top_k)

    def _discounted(self, advantages_N: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Sums over each row's own later tokens, in float64 whatever shares the pass."""
        values = advantages_N.double().tolist()
        end = 0
        for length in lengths:
            start, end = end, end + length
            for n in range(end - 2, start - 1, -1):
                values[n] += self._discount * values[n + 1]
        return advantages_N.new_tensor(values)

    def _over_top(self, scores: Sequence[TeacherScores], logprobs_NV: torch.Tensor) -> torch.Tensor:
        device = logprobs_NV.device
        tokens = [tokens_K for s in scores for tokens_K in s.top_tokens_NK]
        tokens_NK = torch.tensor(tokens, dtype=torch.long, device=device)
        teacher_NK = _flat([p for s in scores for p in s.top_logprobs_NK], logprobs_NV.double())
        teacher_NK = teacher_NK.view(tokens_NK.shape)
        own_NK = logprobs_NV.gather(1, tokens_NK)
        kl_N = (own_NK.exp() * (own_NK - teacher_NK.to(own_NK.dtype))).sum(-1)
        if tokens_NK.shape[1] < logprobs_NV.shape[1]:
            left_NV = logprobs_NV.scatter(1, tokens_NK, -math.inf)
            own_N = left_NV.logsumexp(-1)
            rest_N = (1.0 - teacher_NK.exp().sum(-1)).clamp(min=LEAST_REST).log()
            kl_N = kl_N + own_N.exp() * (own_N - rest_N.to(own_N.dtype))
        return -kl_N

    def neutral(self, row: ScoredTokens) -> ScoredTokens:
        """`row` with scores that a pass can take and that mean nothing."""
        tokens = sum(row.action_mask_T)
        places, even = list(range(self._top_k)), [-math.log(self._top_k + 1.0)] * self._top_k
        made = TeacherScores([0.0] * tokens, [places] * tokens, [even] * tokens)
        return replace(row, teacher=made)


def _scores(row: ScoredTokens, top_k: int) -> TeacherScores:
    scores, tokens = row.teacher, sum(row.action_mask_T)
    given = 0 if scores is None else len(scores.top_tokens_NK if top_k else scores.logprobs_N)
    if scores is None or given != tokens:
        raise ValueError(
            f"{row.trajectory_id}: the teacher scored {given} of {tokens} generated tokens; "
            "no update is made of it"
        )
    return scores


def _flat(values: Sequence[Sequence[float]], like: torch.Tensor) -> torch.Tensor:
    return like.new_tensor([value for part in values for value in part])
