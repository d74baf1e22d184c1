"""From a causal language model's last hidden states to its logits, by the model's own code.

Not every head is one product: some scale or bound the logits. Only a few positions need any, so
that the learner and the engine call the body first and this on what they picked.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


class _Given(nn.Module):
    """Stands for the body (or any part of it): its output is what it is called with."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> _Output:
        return _Output(inputs_embeds)

    def __getattr__(self, name: str) -> Any:
        if name == "decoder":  # OPT's head calls the body's own part
            return self
        return super().__getattr__(name)


class _Output:
    """A body's output with nothing in it but hidden states."""

    def __init__(self, last_hidden_state: torch.Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getitem__(self, place: int) -> torch.Tensor | None:
        return self.last_hidden_state if place == 0 else None

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Head:
    """Logits (M, vocabulary) of hidden states (M, hidden) of `model`, whose weights it shares."""

    def __init__(self, model: Any) -> None:
        self._head: Any = copy.copy(model)
        self._head._modules = dict(model._modules)
        self._head._modules[model.base_model_prefix] = _Given()

    def __call__(self, hidden_M: torch.Tensor) -> torch.Tensor:
        return self._head.forward(inputs_embeds=hidden_M[None], use_cache=False).logits[0]
