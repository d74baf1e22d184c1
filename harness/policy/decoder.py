"""A fast forward pass for Llama and Qwen3 decoders with a static slot cache of keys and values.

Serving only; the learner uses transformers' own classes. At a million parameters the overhead of
each tensor operation decides the speed, so one call of `Decoder.forward` advances every decoding
slot by one token and feeds new prompts at the same time, in about twenty operations a layer: query,
key and value share one product, the gate and up projections another, a norm's weight is part of the
product behind it, rotary embedding is one complex multiplication in place, keys and values are
written at once, and the linear layers see decoded and prompt tokens as one flat list without
padding. The last layer computes of a prompt only what is asked for: its last token.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from harness.policy import pages
from harness.policy.architecture import DecoderConfig
from harness.policy.product import Added, Product
from harness.protocols import UsageError


@dataclass(frozen=True)
class Chunk:
    """Prompt tokens [start, start + length) of the session in `slot`."""

    slot: int
    start: int
    length: int


@dataclass(frozen=True)
class _Reading:
    """Rows of a chunk that look at the first `end` columns of its slot: all of them, each those
    before it (no mask), or what the mask has."""

    slot: int
    end: int
    rows: int
    mask: torch.Tensor | None


def _scaled(x: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / ‖x‖ over the last dimension: an RMS norm without its weight and the root of its width."""
    return (x * x).sum(-1, keepdim=True).add_(x.shape[-1] * eps).rsqrt_()


class _Layer:
    """One layer's weights, fused: `qkv` (q, k, v stacked), `gate_up` (gate, up stacked), each with
    the norm before it; norms have the root of their width in them."""

    def __init__(self, weights: Mapping[str, torch.Tensor], prefix: str, config: DecoderConfig):
        def get(name: str) -> torch.Tensor:
            return weights[f"{prefix}.{name}.weight"].float()

        c = config
        # Rotary halves (i, i + D/2) become neighbours, so that a pair is one complex number.
        order = torch.arange(c.head_dim).view(2, -1).t().reshape(-1)

        def paired(name: str, heads: int) -> torch.Tensor:
            weight = get(name).view(heads, c.head_dim, -1)
            return weight[:, order].reshape(heads * c.head_dim, -1)

        qkv = torch.cat(
            [
                paired("self_attn.q_proj", c.heads),
                paired("self_attn.k_proj", c.kv_heads),
                get("self_attn.v_proj"),
            ]
        )
        root = c.hidden_size**0.5
        self.qkv = Product(qkv.mul_(get("input_layernorm") * root))
        self.qk_norm = None
        if c.qk_norm:
            q, k = get("self_attn.q_norm")[order], get("self_attn.k_norm")[order]
            self.qk_norm = torch.cat([q.expand(c.heads, -1), k.expand(c.kv_heads, -1)])
            self.qk_norm *= c.head_dim**0.5
        self.out = Added(get("self_attn.o_proj"))
        gate_up = torch.cat([get("mlp.gate_proj"), get("mlp.up_proj")])
        self.gate_up = Product(gate_up.mul_(get("post_attention_layernorm") * root))
        self.down = Added(get("mlp.down_proj"))


class Decoder:
    """Weights, and `slots` caches of `max_context` tokens each, in float32."""

    def __init__(self, folder: str | Path, *, slots: int, max_context: int) -> None:
        self.config = c = DecoderConfig.read(Path(folder))
        c.check_context(max_context)
        self.slots, self.max_context = slots, max_context
        # One more column than tokens: slots that are not decoding write there and disturb nothing.
        self._columns = max_context + 1
        shape = (c.layers, 2, slots, c.kv_heads, self._columns, c.head_dim)
        self._cache = pages.zeros(shape)
        self._keys, self._values = self._cache.unbind(1)
        self._cells = self._cache.view(c.layers, -1, c.head_dim).unbind()
        inverse = c.rope_theta ** -(torch.arange(0, c.head_dim, 2).float() / c.head_dim)
        angles = torch.outer(torch.arange(self._columns).float(), inverse)
        self._rope = torch.polar(torch.ones_like(angles), angles)[:, None]  # columns, 1, D/2
        self._columns_range = torch.arange(self._columns)
        # The cells of a position: of its keys, then of its values.
        heads = torch.arange(c.kv_heads)
        self._heads_range = torch.cat([heads, slots * c.kv_heads + heads]) * self._columns
        self.load(folder)

    def load(self, path: str | Path) -> None:
        """Take the weights of a safetensors file (or of a folder's model.safetensors)."""
        self.take(self.read(path))

    def read(self, path: str | Path) -> dict[str, torch.Tensor]:
        """The weights of a file. Raises UsageError where there is none."""
        file = Path(path)
        if file.is_dir():
            file = file / "model.safetensors"
        if not file.is_file():
            raise UsageError(f"weights={file}: no such safetensors file")
        return load_file(file)

    def take(self, weights: dict[str, torch.Tensor]) -> None:
        c = self.config
        self._layers = [_Layer(weights, f"model.layers.{n}", c) for n in range(c.layers)]
        self._embedding = weights["model.embed_tokens.weight"].float()
        self._norm = weights["model.norm.weight"].float()
        head = self._embedding if c.tied else weights["lm_head.weight"].float()
        self._head = Product(head, self.slots)

    def forward(
        self,
        tokens_N: torch.Tensor,
        positions_N: torch.Tensor,
        slots_N: torch.Tensor,
        *,
        decoding: int,
        used: int,
        chunks: Sequence[Chunk],
    ) -> torch.Tensor:
        """Hidden states (decoding + chunks, hidden) before the final norm: of every decoding slot,
        then of each chunk's last token. Keys and values go into the cache.

        The first `decoding` rows are slots 0 to decoding - 1, one token each, of which no more than
        `used` columns hold keys; a row that should be idle has position `max_context`. The
        remaining rows are the `chunks`, in order.
        """
        c = self.config
        rows = tokens_N.shape[0]
        rotated = c.heads + c.kv_heads
        x = self._embedding[tokens_N]
        rope = self._rope[positions_N]
        cells = slots_N * (c.kv_heads * self._columns) + positions_N
        cells = (cells[:, None] + self._heads_range).view(-1)
        bias = self._decode_bias(positions_N[:decoding], used) if decoding else None
        readings = [self._reading(chunk) for chunk in chunks]
        for number, layer in enumerate(self._layers):
            h = x * _scaled(x, c.norm_eps)
            qkv = layer.qkv(h).view(rows, rotated + c.kv_heads, c.head_dim)
            qk = qkv[:, :rotated]
            if layer.qk_norm is not None:
                qk.mul_(_scaled(qk, c.norm_eps)).mul_(layer.qk_norm)
            torch.view_as_complex(qk.unflatten(2, (-1, 2))).mul_(rope)
            q, kv = qkv[:, : c.heads], qkv[:, c.heads :]
            self._cells[number].index_copy_(0, cells, kv.reshape(-1, c.head_dim))
            if chunks and number == c.layers - 1:
                heard = self._heard(decoding, chunks)
                q, x = q[heard], x[heard]
                readings = [replace(reading, rows=1, mask=None) for reading in readings]
            keys, values = self._keys[number], self._values[number]
            mixed = self._attend(q, keys, values, decoding, used, bias, readings)
            x = layer.out(x, mixed)
            h = x * _scaled(x, c.norm_eps)
            gate, up = layer.gate_up(h).chunk(2, dim=1)
            x = layer.down(x, F.silu(gate).mul_(up))
        return x

    def logits(self, hidden_M: torch.Tensor) -> torch.Tensor:
        """Logits (M, vocab) of hidden states from `forward`."""
        c = self.config
        return self._head(F.rms_norm(hidden_M, (c.hidden_size,), self._norm, c.norm_eps))

    def swap(self, a: int, b: int, columns: int) -> None:
        """Exchange the first `columns` keys and values of two slots."""
        first = self._cache[:, :, a, :, :columns]
        second = self._cache[:, :, b, :, :columns]
        kept = first.clone()
        first.copy_(second)
        second.copy_(kept)

    def _decode_bias(self, positions_B: torch.Tensor, used: int) -> torch.Tensor:
        """0 where a slot may look, -inf elsewhere: (slots x kv heads, 1, used)."""
        positions = positions_B.repeat_interleave(self.config.kv_heads)
        hidden = self._columns_range[:used] > positions[:, None, None]
        return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))

    def _reading(self, chunk: Chunk) -> _Reading:
        end = chunk.start + chunk.length
        mask = None
        if chunk.start and chunk.length > 1:
            mask = self._columns_range[:end] <= self._columns_range[chunk.start : end, None]
        return _Reading(chunk.slot, end, chunk.length, mask)

    @staticmethod
    def _heard(decoding: int, chunks: Sequence[Chunk]) -> torch.Tensor:
        """The rows whose hidden states are asked for."""
        ends = itertools.accumulate((chunk.length for chunk in chunks), initial=decoding - 1)
        return torch.tensor([*range(decoding), *list(ends)[1:]])

    def _attend(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        decoding: int,
        used: int,
        bias: torch.Tensor | None,
        readings: Sequence[_Reading],
    ) -> torch.Tensor:
        c = self.config
        width = c.heads * c.head_dim
        parts: list[torch.Tensor] = []
        if bias is not None:
            # Batched products beat scaled_dot_product_attention at one query per slot; the queries
            # that share a key head are its rows.
            group = c.heads // c.kv_heads
            k = keys[:decoding].view(-1, self._columns, c.head_dim)[:, :used]
            v = values[:decoding].view(-1, self._columns, c.head_dim)[:, :used]
            query = q[:decoding].reshape(decoding * c.kv_heads, group, c.head_dim)
            scores = torch.baddbmm(bias, query, k.transpose(1, 2), alpha=c.head_dim**-0.5)
            parts.append(torch.bmm(torch.softmax(scores, -1), v).view(decoding, width))
        row = decoding
        for reading in readings:
            mixed = F.scaled_dot_product_attention(
                q[None, row : row + reading.rows].transpose(1, 2),
                keys[None, reading.slot, :, : reading.end],
                values[None, reading.slot, :, : reading.end],
                attn_mask=reading.mask,
                is_causal=reading.mask is None and reading.rows > 1,
                enable_gqa=c.heads != c.kv_heads,
            )
            parts.append(mixed.transpose(1, 2).reshape(reading.rows, width))
            row += reading.rows
        return parts[0] if len(parts) == 1 else torch.cat(parts)
