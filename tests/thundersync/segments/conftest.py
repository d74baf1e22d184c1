"""Tiny random models of both families, and the gradient of a whole trajectory in one pass."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from thundersync.true_norms import use_true_norms

VOCABULARY = 48
TEMPERATURE = 0.7
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "head_dim": 8, "intermediate_size": 40,
}  # fmt: skip


def make(family: str, tied: bool = True, key_heads: int = 2, **options: Any) -> Any:
    """A float32 model with sdpa, in training mode, and its own norms."""
    import transformers

    config = getattr(transformers, f"{family}Config")(
        **_SHAPE | {"tie_word_embeddings": tied, "num_key_value_heads": key_heads} | options
    )
    torch.manual_seed(0)
    config._attn_implementation = "sdpa"
    return getattr(transformers, f"{family}ForCausalLM")(config).train()


@dataclass(frozen=True)
class Trajectory:
    """Turns (tokens, action mask), and a weight for each action token."""

    turns: list[tuple[list[int], list[int]]]
    weights_N: list[float]

    @property
    def tokens_T(self) -> list[int]:
        return [token for tokens, _ in self.turns for token in tokens]

    @property
    def action_mask_T(self) -> list[int]:
        return [m for _, mask in self.turns for m in mask]


def trajectory(turns: Sequence[tuple[int, int]], seed: int = 0) -> Trajectory:
    """Random tokens and weights for turns of (observation, action) tokens."""
    draw = random.Random(seed)
    made = [
        ([draw.randrange(VOCABULARY) for _ in range(seen + acted)], [0] * seen + [1] * acted)
        for seen, acted in turns
    ]
    return Trajectory(made, [draw.gauss(0.0, 1.0) for _ in range(sum(a for _, a in turns))])


def trainable(model: Any) -> list[torch.nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def one_shot(
    model: Any,
    given: Trajectory,
    term: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """The gradient of the whole trajectory, from logits of the plain model: of the weighted
    log-probabilities, or of `term` of (log-probabilities over the vocabulary, tokens)."""
    tokens = torch.tensor(given.tokens_T)
    logits_TV = model(input_ids=tokens[None, :-1], use_cache=False).logits[0]
    rows = torch.tensor(given.action_mask_T[1:]).bool()
    logprobs_NV = torch.log_softmax(logits_TV[rows] / TEMPERATURE, -1)
    targets_N = tokens[1:][rows]
    if term is None:
        weights_N = torch.tensor(given.weights_N, dtype=torch.float64)
        value = (logprobs_NV[range(len(targets_N)), targets_N] * weights_N.to(logprobs_NV)).sum()
    else:
        value = term(logprobs_NV, targets_N)
    return list(torch.autograd.grad(value, trainable(model)))


def zeros(model: Any, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    return [torch.zeros_like(p, dtype=dtype) for p in trainable(model)]


def difference(found: Sequence[torch.Tensor], true: Sequence[torch.Tensor]) -> float:
    """Relative, over all parameters together."""
    pairs = list(zip(found, true, strict=True))
    size = sum(float(t.double().square().sum()) for t in true) ** 0.5
    assert size > 0.0
    return sum(float((f.double() - t.double()).square().sum()) for f, t in pairs) ** 0.5 / size


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


KINDS = {
    "qwen3": ("Qwen3", True, 2), "qwen3_untied": ("Qwen3", False, 1), "llama": ("Llama", True, 4),
    "llama_untied": ("Llama", False, 2),
}  # fmt: skip


@pytest.fixture(scope="session")
def exact_models() -> dict[str, Any]:
    """float64 all through: both families, tied and not, keys shared by 1, 2 or 4 query heads."""
    made = {}
    for name, (family, tied, key_heads) in KINDS.items():
        made[name] = make(family, tied, key_heads).double()
        use_true_norms(made[name])
    return made
