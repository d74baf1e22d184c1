"""Attention of sequences that lie side by side in one row, for every model of transformers whose
attention goes through its interface (`ALL_ATTENTION_FUNCTIONS`).

A model is called with one row of N tokens, of which some belong to one sequence and some to
another. Its linear layers never look from token to token; what does is this function, which asks
the pass's `SideBySide` who may look at whom. The learner packs trajectories so, the engine its
sessions. transformers' own masks for packed rows would be N x N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from harness.protocols import UsageError

ATTENTION = "harness_side_by_side"


@dataclass(frozen=True)
class Rule:
    """What a layer says of its attention. `window`: a token sees itself and window - 1 before
    it; `softcap` bounds the scores by tanh."""

    scale: float
    window: int | None = None
    softcap: float | None = None


class SideBySide(Protocol):
    """Who may look at whom in one pass."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule
    ) -> torch.Tensor:
        """`query` (heads, N, D), `key` and `value` (kv heads, N, D) -> (heads, N, D)."""
        ...


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rule: Rule,
    hidden: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of (..., heads, Q, D) over (..., kv heads, K, D). `hidden` (..., Q, K) is true
    where a query may not look; None is plain causal with Q = K."""
    if rule.softcap is None:
        return scaled_dot_product_attention(
            query, key, value,
            attn_mask=None if hidden is None else ~hidden,
            is_causal=hidden is None,
            scale=rule.scale,
            enable_gqa=query.shape[-3] != key.shape[-3],
        )  # fmt: skip
    if hidden is None:
        ones = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
        hidden = ones.triu(1)
    shared = query.shape[-3] // key.shape[-3]
    key, value = key.repeat_interleave(shared, -3), value.repeat_interleave(shared, -3)
    scores = query @ key.transpose(-1, -2) * rule.scale
    scores = torch.tanh(scores / rule.softcap) * rule.softcap
    return torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ value


def outside(queries_Q: torch.Tensor, keys_K: torch.Tensor, window: int | None) -> torch.Tensor:
    """(Q, K), true where the query's position may not look at the key's."""
    ahead = keys_K > queries_Q[:, None]
    return ahead if window is None else ahead | (keys_K <= queries_Q[:, None] - window)


@dataclass(frozen=True)
class Sequences:
    """Whole sequences of `lengths` tokens, one behind the other: none looks at another."""

    lengths: Sequence[int]

    def positions(self, device: torch.device) -> torch.Tensor:
        """(1, N): they begin at 0 in each sequence."""
        return torch.cat([torch.arange(n, device=device) for n in self.lengths])[None]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule
    ) -> torch.Tensor:
        mixed = []
        lengths = list(self.lengths)
        parts = [x.split(lengths, 1) for x in (query, key, value)]
        for own in zip(*parts, strict=True):
            # A batch of one: without it the CPU's kernel that needs no N x N scores is not taken.
            q, k, v = own[0][None], own[1][None], own[2][None]
            count, hidden = q.shape[2], None
            if rule.window is not None and rule.window < count:
                place = torch.arange(count, device=query.device)
                hidden = outside(place, place, rule.window)
            mixed.append(attend(q, k, v, rule, hidden)[0])
        return torch.cat(mixed, 1)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    side_by_side: SideBySide | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: (1, heads, N, D) -> (1, N, heads, D)."""
    if side_by_side is None:
        raise UsageError(
            f"{type(module).__name__}: does not hand on to its attention what the model is called "
            "with, so that sequences cannot lie side by side"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    rule = Rule(scale, sliding_window, softcap)
    mixed = side_by_side.attend(module.layer_idx, query[0], key[0], value[0], rule)
    return mixed.transpose(0, 1)[None].contiguous(), None


def install(model: Any) -> None:
    """From now on `model` attends side by side and is called with `side_by_side=`, also where
    gradient checkpointing runs a layer again. It then makes no masks."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attention)
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            config._attn_implementation = ATTENTION
