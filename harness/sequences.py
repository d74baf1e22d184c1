"""The sequences of a trajectory: one, or several where the agent's context was rewritten between
turns. Torch-free.

Source: math.md section 5. A turn whose prompt begins with all tokens so far prolongs its sequence.
Any other prompt (history elided or summarised, tokenised anew) begins a sequence of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol


class Rewritten(Protocol):
    """What is needed of a trajectory here."""

    @property
    def tokens_T(self) -> Sequence[int]: ...
    @property
    def rewritten_at(self) -> Sequence[int]: ...


def prolongation(so_far: Sequence[int], prompt: Sequence[int]) -> list[int] | None:
    """The tokens by which `prompt` goes on after `so_far`; None where it does not: its context was
    rewritten."""
    length = len(so_far)
    return list(prompt[length:]) if list(prompt[:length]) == list(so_far) else None


def spans(row: Rewritten) -> list[tuple[int, int]]:
    """[start, end) of each sequence, in the trajectory's tokens."""
    return list(itertools.pairwise([0, *row.rewritten_at, len(row.tokens_T)]))


def begins(row: Rewritten, token: int) -> int:
    """Where the sequence begins that `token` is of."""
    return max((at for at in row.rewritten_at if at <= token), default=0)


def longest(row: Rewritten) -> int:
    """Tokens of the longest sequence."""
    return max(end - start for start, end in spans(row))


def padded(rows: Sequence[Rewritten]) -> int:
    """Tokens that a pass over the sequences of `rows` computes, padding included."""
    return sum(len(row.rewritten_at) + 1 for row in rows) * max(map(longest, rows), default=0)
