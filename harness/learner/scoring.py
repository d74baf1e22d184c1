"""What a learner differentiates: the scores of trajectories at the current weights.

Source: math.md sections 1 and 4. The policy term is linear in the coefficients; whatever does not
depend on the reward (KL to a reference, entropy) is a term of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import log_softmax

from harness.learner.client import ScoredTokens
from harness.objectives.estimators import AGGREGATIONS


@dataclass(frozen=True)
class Score:
    """`policy`: sum over rows of coefficient x weighted log-probabilities, a scalar with a graph.
    `always`: the reward-independent terms of the same rows; None where the objective has none."""

    policy: torch.Tensor
    always: torch.Tensor | None = None


class Scorer:
    """Scores rows with `model` at `temperature`; `aggregation` gives the weight of a token."""

    def __init__(self, model: Any, temperature: float, aggregation: str) -> None:
        self.model = model
        self._temperature = temperature
        self._weight = AGGREGATIONS[aggregation].weight
        self.regularised = False

    def __call__(self, rows: Sequence[ScoredTokens], coefficients: Sequence[float]) -> Score | None:
        """None where no row has an action token: such rows have no gradient. Right padding needs no
        attention mask under causal attention; logits are made at action positions only."""
        used = [(r, c) for r, c in zip(rows, coefficients, strict=True) if any(r.action_mask_T)]
        if not used:
            return None
        length = max(len(r.tokens_T) for r, _ in used)
        tokens = torch.zeros(len(used), length, dtype=torch.long)
        mask = torch.zeros(len(used), length, dtype=torch.bool)
        for i, (row, _) in enumerate(used):
            tokens[i, : len(row.tokens_T)] = torch.tensor(row.tokens_T)
            mask[i, : len(row.tokens_T)] = torch.tensor(row.action_mask_T, dtype=torch.bool)
        hidden = self.model.base_model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
        predicts = mask[:, 1:]
        logits = self.model.get_output_embeddings()(hidden[predicts])
        targets = tokens[:, 1:][predicts]
        logprobs = log_softmax(logits / self._temperature, -1).gather(1, targets[:, None])[:, 0]
        scaled = [c * self._weight(sum(r.action_mask_T)) for r, c in used]
        weights = torch.tensor(scaled, dtype=logprobs.dtype)
        return Score((logprobs * weights[:, None].expand_as(predicts)[predicts]).sum())
