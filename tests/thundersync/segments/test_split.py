"""Turns to sequences, from their tokens alone (math.md section 5)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from thundersync.segments_split import Segment, prolongation, split

few_tokens = st.lists(st.integers(0, 2), max_size=4)


def test_a_prompt_that_goes_on_gives_its_new_tokens() -> None:
    assert prolongation([1, 2], [1, 2, 3, 4]) == [3, 4]
    assert prolongation([1, 2], [1, 2]) == []  # an empty observation
    assert prolongation([], [5]) == [5]


def test_a_prompt_that_does_not_is_rewritten() -> None:
    assert prolongation([1, 2], [1, 3, 3]) is None
    assert prolongation([1, 2], [1]) is None  # elided, though all that is left is alike
    assert prolongation([1, 2], []) is None


def test_turns_of_one_context_are_one_sequence() -> None:
    turns = [([1, 2], [3]), ([1, 2, 3, 4], []), ([1, 2, 3, 4], [5, 6])]
    assert split(turns) == [
        [Segment(0, [1, 2, 3], [0, 0, 1]), Segment(1, [4], [0]), Segment(2, [5, 6], [1, 1])]
    ]


def test_a_rewritten_turn_begins_a_sequence_whose_prompt_is_not_scored() -> None:
    turns = [([1, 2], [3]), ([1, 9, 3], [4]), ([1, 9, 3, 4, 5], [6])]
    assert split(turns) == [
        [Segment(0, [1, 2, 3], [0, 0, 1])],
        [Segment(1, [1, 9, 3, 4], [0, 0, 0, 1]), Segment(2, [5, 6], [0, 1])],
    ]
    assert split([]) == []


@given(st.lists(st.tuples(st.booleans(), few_tokens, few_tokens), max_size=8))
def test_every_action_is_scored_once_behind_its_own_prompt(
    made: list[tuple[bool, list[int], list[int]]],
) -> None:
    turns: list[tuple[list[int], list[int]]] = []
    for goes_on, tokens, action in made:
        so_far = [*turns[-1][0], *turns[-1][1]] if turns and goes_on else []
        turns.append(([*so_far, *tokens], action))
    seen = 0
    for sequence in split(turns):
        so_far = []
        for segment in sequence:
            prompt, action = turns[segment.turn]
            assert segment.turn == seen
            scored = [t for t, m in zip(segment.tokens_T, segment.action_mask_T, strict=True) if m]
            so_far = so_far + segment.tokens_T
            assert scored == action
            assert so_far == prompt + action
            seen += 1
    assert seen == len(turns)
