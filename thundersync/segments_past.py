"""Keys and values of a sequence that grows turn by turn, written once and never copied for a turn.

Source: math.md section 5. A segment's attention sees its own keys and values behind those of all
earlier segments: a view of one buffer, which autograd takes for a new tensor (`_Joined`). Its
backward hands the segment its own part of the gradient and adds the rest to the adjoint of the
earlier segments, which they start from when their turn comes. transformers' DynamicCache copies the
whole past at every turn, and under a graph every turn keeps its copy; its StaticCache writes into
what an earlier turn's graph has saved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.functional import scaled_dot_product_attention

ATTENTION = "thundersync_segments"
_SMALLEST_CAPACITY = 64


def capacity(tokens: int) -> int:
    """Tokens that a buffer for `tokens` has room for: a power of two, so that a sequence moves to a
    larger buffer a few times only."""
    return max(_SMALLEST_CAPACITY, 1 << (tokens - 1).bit_length())


class Shape:
    """Of one token's keys and values in all layers."""

    def __init__(self, model: Any) -> None:
        config = model.config
        weight = model.get_input_embeddings().weight
        heads = config.num_attention_heads
        self._layers = config.num_hidden_layers
        self._heads = config.num_key_value_heads or heads
        self._width = getattr(config, "head_dim", None) or config.hidden_size // heads
        self._dtype, self._device = weight.dtype, weight.device
        self.token_bytes = 2 * self._layers * self._heads * self._width * weight.dtype.itemsize

    def empty(self, tokens: int) -> torch.Tensor:
        """(layers, 2, heads, tokens, width): keys at [:, 0], values at [:, 1]."""
        size = (self._layers, 2, self._heads, tokens, self._width)
        return torch.empty(size, dtype=self._dtype, device=self._device)

    def zeros(self, tokens: int) -> torch.Tensor:
        return self.empty(tokens).zero_()


class Store:
    """The keys and values of one sequence so far, and the adjoint that a backward pass is making of
    them."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.values = shape.empty(0)
        self.adjoint: torch.Tensor | None = None

    @property
    def held_bytes(self) -> int:
        return self.values.untyped_storage().nbytes()

    def bytes_for(self, tokens: int) -> int:
        """What the buffer will take once it holds `tokens`."""
        kept = tokens <= self.values.shape[3]
        return self.held_bytes if kept else capacity(tokens) * self._shape.token_bytes

    def reserve(self, tokens: int, used: int) -> None:
        """Room for `tokens`, of which `used` are there. Graphs keep the buffer that they saw."""
        if tokens > self.values.shape[3]:
            larger = self._shape.empty(capacity(tokens))
            larger[:, :, :, :used] = self.values[:, :, :, :used]
            self.values = larger


class Span:
    """Tokens [start, end) of a store's sequence, in one forward pass. `writes`: their keys and
    values go into the store; otherwise they are there from an earlier pass at the same weights."""

    def __init__(self, store: Store, start: int, end: int, writes: bool) -> None:
        self._store, self._start, self._end, self._writes = store, start, end, writes
        if writes:
            store.reserve(end, start)

    def join(self, own: torch.Tensor, layer: int, part: int) -> torch.Tensor:
        """All keys (or values) of a layer up to the span's end, without a history."""
        cells = self._store.values[layer, part]
        if self._writes:
            cells[:, self._start : self._end] = own[0]
        # `.data` has a version counter of its own: later turns write behind this view, into cells
        # that it does not show, and must not make autograd believe that it changed.
        return cells[None, :, : self._end].data

    def split(self, gradient: torch.Tensor, layer: int, part: int) -> torch.Tensor:
        """The span's own part of a gradient of `join`; the rest goes to the adjoint."""
        if self._start:
            earlier = self._adjoint()[layer, part, :, : self._start]
            earlier += gradient[0, :, : self._start]
        return gradient[:, :, self._start :]

    def adjoint(self, layer: int, part: int) -> torch.Tensor:
        """What later segments have added for this one."""
        return self._adjoint()[layer, part, :, self._start : self._end][None]

    def _adjoint(self) -> torch.Tensor:
        assert self._store.adjoint is not None, "a backward pass outside of a reverse sweep"
        return self._store.adjoint


class Past:
    """The cache that a model is called with. It knows the graph, which in turn knows the span, and
    is therefore not the span: such a circle would never be freed."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._edges: list[tuple[int, int, GradientEdge]] = []

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by the model's attention: all keys and values up to the span's end."""
        return self._joined(keys, layer, 0), self._joined(values, layer, 1)

    def _joined(self, own: torch.Tensor, layer: int, part: int) -> torch.Tensor:
        if torch.is_grad_enabled() and own.requires_grad:
            # An edge, and not the tensor: its memory need not live as long as the graph.
            self._edges.append((layer, part, get_gradient_edge(own)))
        joined = _Joined.apply(own, self._span, layer, part)
        assert isinstance(joined, torch.Tensor)
        return joined

    def entries(self) -> tuple[list[GradientEdge], list[torch.Tensor]]:
        """Where the gradient from later segments enters this one, and that gradient."""
        adjoints = [self._span.adjoint(layer, part) for layer, part, _ in self._edges]
        return [edge for *_, edge in self._edges], adjoints


class _Joined(torch.autograd.Function):
    """A segment's keys (or values) of a layer behind those of all earlier segments."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, span: Span, layer: int, part: int) -> torch.Tensor:
        ctx.where = span, layer, part
        return span.join(own, layer, part)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        span, layer, part = ctx.where
        return span.split(gradients[0], layer, part), None, None, None


def causal_mask(start: int, end: int, like: torch.Tensor) -> torch.Tensor | None:
    """Of queries [start, end) over keys [0, end), to be added; None where plain causal attention is
    meant. Made once a pass: sdpa would turn a mask of booleans into such a one in every layer."""
    if start == 0:
        return None
    mask = torch.full((end - start, end), -torch.inf, dtype=like.dtype, device=like.device)
    return mask.triu_(start + 1)[None, None]


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """sdpa whose shared keys stay shared: transformers' own repeats the past's keys and values for
    every query head where there is a mask, a copy of the past per turn and layer. Here the query
    heads of a key head go into the batch, over which keys and values are expanded."""
    heads, shared = key.shape[1], module.num_key_value_groups
    queries = query[0].unflatten(0, (heads, shared)).transpose(0, 1)
    mixed = scaled_dot_product_attention(
        queries,
        key.expand(shared, -1, -1, -1),
        value.expand(shared, -1, -1, -1),
        attn_mask=attention_mask,
        is_causal=attention_mask is None,
        scale=scaling,
    )
    return mixed.transpose(0, 1).flatten(0, 1).transpose(0, 1)[None].contiguous(), None


@contextlib.contextmanager
def segment_attention(model: Any) -> Iterator[None]:
    """The model's layers attend with `_attend` inside; transformers looks it up at each call."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attend)
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before
