"""From an agent's turns to sequences of segments, by their tokens alone.

Source: math.md section 5. A turn whose prompt begins with all tokens so far prolongs its sequence:
what is new of the prompt and the action are its segment. An agent that elided or summarised its
history, or whose prompt was tokenised anew and differs, begins a sequence of its own; what that
prompt repeats of earlier actions is context there and is not scored twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.sequences import prolongation


@dataclass(frozen=True)
class Segment:
    """What turn number `turn` adds to its sequence: an observation, then an action; either may be
    empty."""

    turn: int
    tokens_T: list[int]
    action_mask_T: list[int]


def split(turns: Iterable[tuple[Sequence[int], Sequence[int]]]) -> list[list[Segment]]:
    """(prompt, action) of each turn, the prompt being the whole context that the engine saw, as
    sequences of segments in order. Sequences never share gradients: each is a forward pass of its
    own."""
    sequences: list[list[Segment]] = []
    so_far: list[int] = []
    for turn, (prompt, action) in enumerate(turns):
        observation = prolongation(so_far, prompt) if sequences else None
        if observation is None:
            sequences.append([])
            so_far, observation = [], list(prompt)
        tokens = observation + list(action)
        sequences[-1].append(Segment(turn, tokens, [0] * len(observation) + [1] * len(action)))
        so_far = so_far + tokens
    return sequences
