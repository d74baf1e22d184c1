"""What the literal losses share: a policy's distributions at a trajectory's own tokens, the
settings that they are compared under, and a model whose distribution is written down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from harness.protocols import Trajectory

SIZE = 5  # of a group
SETTINGS: dict[str, Any] = {
    "rollout.temperature": 0.8,
    "schedule.chunk_tokens": 96,
    "schedule.learning_rate": 0.0,  # every update is played at the same weights
    "learner.dtype": "float64",
    "ledger.dtype": "float64",
    "rollout.group_size": SIZE,
}


def log_distribution(model: Any, t: Trajectory, temperature: float) -> torch.Tensor:
    """Log-probabilities over the vocabulary at the action positions of one trajectory."""
    logits = model(input_ids=torch.tensor([t.tokens_T])).logits[0, :-1] / temperature
    logprobs = logits - logits.logsumexp(-1, keepdim=True)
    return logprobs[torch.tensor(t.action_mask_T[1:], dtype=torch.bool)]


def chosen(logprobs: torch.Tensor, t: Trajectory) -> torch.Tensor:
    """Of a distribution at each action position, the action token's."""
    pairs = zip(t.tokens_T, t.action_mask_T, strict=True)
    tokens = torch.tensor([y for y, m in pairs if m], dtype=torch.long)
    return logprobs[torch.arange(len(tokens)), tokens]


class Unigram(nn.Module):
    """A model whose logits are a parameter, the same at every position."""

    base_model_prefix = "body"

    def __init__(self, logits_V: list[float], dtype: torch.dtype) -> None:
        super().__init__()
        self.logits_V = nn.Parameter(torch.tensor(logits_V, dtype=dtype))
        self.weight = self.logits_V

    def base_model(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        return SimpleNamespace(last_hidden_state=torch.zeros(*input_ids.shape, 1))

    def get_input_embeddings(self) -> Any:
        return self

    @property
    def dtype(self) -> torch.dtype:
        return self.logits_V.dtype

    def forward(self, inputs_embeds: torch.Tensor, use_cache: bool) -> Any:
        return SimpleNamespace(logits=self.logits_V.expand(*inputs_embeds.shape[:2], -1))
