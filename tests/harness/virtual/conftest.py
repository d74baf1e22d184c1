"""Costs that can be added up in one's head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest


@dataclass
class ToyCosts:
    """A decode step takes `step` seconds and `each` for every running sequence, a token of context
    `context`; reading a token `read`; a pass `chunk` and a second per token."""

    step: float = 1.0
    each: float = 0.0
    context: float = 0.0
    read: float = 0.0
    chunk: float = 0.0
    overhead: float = 0.0
    fold: float = 0.0
    optimizer: float = 0.0
    publication: float = 0.0
    context_capacity_tokens: int = 10**9
    recomputes: bool = False
    context_token_bytes: float = 10.0

    def decode_step_s(self, running: int, context_tokens: float) -> float:
        return self.step + self.each * running + self.context * context_tokens

    def prefill_s(self, new_tokens: int, context_tokens: int) -> float:
        return self.read * new_tokens

    def backward_s(self, lengths: Sequence[int]) -> float:
        return self.chunk + sum(lengths)

    def forward_s(self, lengths: Sequence[int]) -> float:
        return self.chunk + sum(lengths) / 4

    def fold_s(self, buffers: int) -> float:
        return self.fold * buffers

    def capture_overhead_s(self, trajectories: int) -> float:
        return self.overhead * trajectories

    def step_s(self) -> float:
        return self.optimizer

    def publish_s(self) -> float:
        return self.publication

    def gradient_bytes(self) -> int:
        return 100


@pytest.fixture
def toy() -> type[ToyCosts]:
    return ToyCosts
