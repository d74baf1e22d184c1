"""What an agent sees of its own past: all of it, or the task and the last few turns.

Where turns are left out the context is rewritten: the prompt is not the last one prolonged, and the
trajectory has a new sequence (harness/sequences.py). That is found by comparing tokens; nobody says
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.protocols import Trajectory
from harness.sequences import begins, prolongation


class History:
    """Prompts of one agent's trajectories. With `turns` each has the first message and that many of
    the last actions with what came of them; None: everything."""

    def __init__(self, turns: int | None) -> None:
        self._turns = turns
        self._heard: dict[str, list[list[int]]] = {}

    def prompt(self, trajectory: Trajectory, heard: Sequence[int]) -> list[int]:
        """The whole context of the next turn, after the tokens `heard`."""
        said = self._heard.setdefault(trajectory.trajectory_id, [])
        if self._turns is None:
            return [*trajectory.tokens_T, *heard]
        said.append(list(heard))
        prompt = list(said[0])
        first = max(0, len(trajectory.turns) - self._turns)
        for turn, answer in zip(trajectory.turns[first:], said[first + 1 :], strict=True):
            prompt += trajectory.tokens_T[turn.action_start : turn.action_end] + answer
        return prompt

    def forget(self, trajectory: Trajectory) -> None:
        self._heard.pop(trajectory.trajectory_id, None)


def take(trajectory: Trajectory, prompt: Sequence[int]) -> list[int]:
    """The tokens that the trajectory gets for `prompt`: what is new, or, where it does not prolong
    the sequence so far, all of it, as a sequence that begins here."""
    length = len(trajectory.tokens_T)
    new = prolongation(trajectory.tokens_T[begins(trajectory, length) :], prompt)
    if new is None:
        trajectory.rewritten_at.append(length)
        return list(prompt)
    return new
