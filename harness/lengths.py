"""Tokens that are only counted: what a trajectory holds where nobody makes or reads them.

The tokens of a virtual run without learning are `range(n)`, its action mask a few numbers, and
there are no log-probabilities: a trajectory of 100,000 tokens is as small as one of ten.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

if TYPE_CHECKING:
    from harness.protocols import Group, Trajectory


class Mask(Sequence[int]):
    """A mask as its runs: `edges` are the places where 0 turns into 1 and back, in turn."""

    __slots__ = ("_length", "_ones", "edges")

    def __init__(self) -> None:
        self.edges: list[int] = []
        self._length = self._ones = 0

    def extend(self, tokens: int, value: int) -> None:
        """Append `tokens` times `value`."""
        if value and tokens:
            self._ones += tokens
            if self.edges and self.edges[-1] == self._length:
                self.edges.pop()
            else:
                self.edges.append(self._length)
            self.edges.append(self._length + tokens)
        self._length += tokens

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        place = index + self._length if index < 0 else index
        if not 0 <= place < self._length:
            raise IndexError(index)
        return bisect_right(self.edges, place) % 2

    def count(self, value: Any) -> int:
        return self._ones if value == 1 else (self._length - self._ones) * (value == 0)

    def forget(self) -> None:
        """Keep the counts alone."""
        self.edges = []

    @property
    def spans(self) -> list[list[int]]:
        """[start, end) of each run of ones."""
        return [list(pair) for pair in zip(self.edges[::2], self.edges[1::2], strict=True)]

    @property
    def last_start(self) -> int:
        """Where the run of ones at the end begins; the length where it ends in a zero."""
        at_end = self.edges and self.edges[-1] == self._length
        return self.edges[-2] if at_end else self._length


def extend(trajectory: Trajectory, tokens: int, generated: bool) -> None:
    """Append so many tokens to a trajectory that holds none, or others that are only counted."""
    mask: Any = trajectory.action_mask_T
    if mask.__class__ is not Mask:
        mask = trajectory.action_mask_T = cast("list[int]", Mask())
    mask.extend(tokens, int(generated))
    trajectory.tokens_T = cast("list[int]", range(len(mask)))


def mask_of(trajectory: Trajectory) -> Mask | None:
    """The mask of a trajectory whose tokens are only counted; None of any other."""
    mask: Any = trajectory.action_mask_T
    return mask if isinstance(mask, Mask) else None


def forget(groups: Iterable[Group]) -> None:
    """Of counted trajectories that have been trained on and written down, what nobody reads again:
    most of a long run's memory."""
    for group in groups:
        for trajectory in group.trajectories:
            if (mask := mask_of(trajectory)) is not None:
                trajectory.turns, trajectory.version_spans = [], []
                mask.forget()
