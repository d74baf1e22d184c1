"""The reverse sweep over a sequence's pieces, from the last to the first.

Source: math.md section 5. What later pieces send back to the keys and values of earlier ones (the
store's adjoint) enters each piece beside its own loss: the sum is the whole sequence's gradient,
wherever a piece's graph comes from.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence

import torch

from thundersync.segments_held import Held, Piece
from thundersync.segments_pass import Score, Scored, backward
from thundersync.segments_past import Shape, Store

Buffers = Sequence[torch.Tensor]
Run = Callable[[Held, Store, Piece, bool], Scored]


def pieces(held: Held, chunk_tokens: int) -> list[Piece]:
    """All input positions in order: what was retained, and between it what is run again, in pieces
    of at most `chunk_tokens`; one piece where tokens alone are held."""
    if held.store is None:
        return [Piece(0, held.inputs)] if held.inputs else []
    found: list[Piece] = []
    for piece in [*held.retained, Piece(held.inputs, held.inputs)]:
        at = found[-1].end if found else 0
        count = -(-(piece.start - at) // chunk_tokens)
        cuts = [at + n * (piece.start - at) // max(count, 1) for n in range(count + 1)]
        found += [Piece(a, b) for a, b in itertools.pairwise(cuts)]
        found.append(piece)
    return found[:-1]


def reverse(
    held: Held,
    left: list[Piece],
    shape: Shape,
    run: Run,
    score: Score,
    into: Sequence[Buffers],
    parameters: Sequence[torch.nn.Parameter],
) -> None:
    """Add one gradient to each of `into`, taking pieces from the end of `left`. A piece that
    nothing scores and nothing later looks back from has no gradient, and is not run again."""
    store = held.store or Store(shape)
    adjoints = [shape.zeros(left[-1].end) if len(left) > 1 else None for _ in into]
    later = False
    while left:
        piece = left.pop()
        own = any(held.action_mask_T[piece.start + 1 : piece.end + 1])
        if not own and not later:
            continue
        scored = piece.scored or run(held, store, piece, held.store is None)
        piece.scored = None
        terms: Sequence[torch.Tensor | None] = [None] * len(into)
        if own:
            terms = score(scored.first, scored.logprobs_NV, scored.targets_N)
        for n, (term, buffers) in enumerate(zip(terms, into, strict=True)):
            store.adjoint = adjoints[n]
            with _gradients_into(parameters, buffers):
                backward(scored, term, later, keep=n + 1 < len(into))
        later = True


@contextlib.contextmanager
def _gradients_into(parameters: Sequence[torch.nn.Parameter], buffers: Buffers) -> Iterator[None]:
    """Backward passes inside add to `buffers`, in place where the dtype is the weights' own."""
    pairs = list(zip(parameters, buffers, strict=True))
    before = [parameter.grad for parameter in parameters]
    try:
        for parameter, buffer in pairs:
            parameter.grad = buffer if buffer.dtype == parameter.dtype else None
        yield
        for parameter, buffer in pairs:
            if parameter.grad is not None and parameter.grad is not buffer:
                buffer += parameter.grad
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
