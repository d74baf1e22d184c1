"""An agent that elides old turns: what its engine reads, and what the trajectory becomes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.agents import PolicyAgent
from harness.config import RolloutConfig
from harness.protocols import Completion, Generation, Trajectory, Turn, VersionSpan
from harness.sequences import begins, longest, padded, spans
from harness.trajectory_lines import decode, encode
from thundersync.segments_split import split


class Words:
    """A chat template of one token a message."""

    stop_tokens = (0,)

    def first(self, message: str) -> list[int]:
        return [100, 101]

    def observation(self, text: str) -> list[int]:
        return [int(text)]

    def decode_action(self, tokens_T: Sequence[int]) -> str:
        return "act"


class Scripted:
    """An engine whose n-th action is n, 0; it keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    async def generate(self, request: Generation) -> Completion:
        self.asked.append(list(request.prompt_T))
        tokens = [len(self.asked), 0]
        return Completion(tokens, [-0.1, -0.2], [VersionSpan(3, 0, 2)], "stop")

    async def release(self, session: str) -> None:
        """Nothing is held."""


def acted(turns: int, history_turns: int | None, most: int = 640) -> tuple[Trajectory, Scripted]:
    """A trajectory of `turns` turns, whose observations are 51, 52 and so on."""
    engine = Scripted()
    limits = RolloutConfig(history_turns=history_turns, max_new_tokens=2, max_context_tokens=most)
    agent = PolicyAgent(engine, Words(), limits, 1.0)  # pyright: ignore[reportArgumentType]
    trajectory = Trajectory("0-0", "t", "easy", 0, 0, seed=1)

    async def live() -> None:
        for n in range(turns):
            if await agent.act(trajectory, str(50 + n)) is None:
                return
            end = len(trajectory.tokens_T)
            trajectory.turns.append(Turn(end - 2, end, 0.0, 0.0))
        await agent.close(trajectory)

    asyncio.run(live())
    return trajectory, engine


def test_all_of_the_history_is_one_sequence():
    trajectory, engine = acted(3, None)
    assert engine.asked[2] == [100, 101, 1, 0, 51, 2, 0, 52]
    assert trajectory.rewritten_at == []
    assert trajectory.tokens_T == [*engine.asked[2], 3, 0]


def test_as_many_turns_as_there_are_rewrite_nothing():
    whole, _ = acted(3, None)
    trajectory, _ = acted(3, 2)
    assert trajectory.tokens_T == whole.tokens_T
    assert trajectory.rewritten_at == []


@pytest.mark.parametrize(
    ("kept", "last", "sequences"),
    [(1, [100, 101, 3, 0, 53], 3), (2, [100, 101, 2, 0, 52, 3, 0, 53], 2)],
)
def test_the_engine_reads_the_task_and_the_last_turns(kept: int, last: list[int], sequences: int):
    trajectory, engine = acted(4, kept)
    assert engine.asked[3] == last
    assert len(spans(trajectory)) == sequences


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_the_trajectory_holds_every_prompt_and_every_action_once(kept: int):
    trajectory, engine = acted(6, kept)
    for turn, prompt in zip(trajectory.turns, engine.asked, strict=True):
        first = begins(trajectory, turn.action_start)
        assert trajectory.tokens_T[first : turn.action_start] == prompt
    assert trajectory.action_tokens == 12
    assert [s.start for s in trajectory.version_spans] == [t.action_start for t in trajectory.turns]
    assert len(trajectory.action_mask_T) == len(trajectory.tokens_T)
    assert all(trajectory.action_mask_T[start] == 0 for start, _ in spans(trajectory))


def test_sequences_are_those_that_the_tokens_alone_say():
    trajectory, engine = acted(5, 2)
    found = split((prompt, [n, 0]) for n, prompt in enumerate(engine.asked, start=1))
    cut = [[t for s in sequence for t in s.tokens_T] for sequence in found]
    assert cut == [trajectory.tokens_T[a:b] for a, b in spans(trajectory)]


def test_the_context_limit_is_that_of_one_prompt():
    """A history that is elided goes on where a whole one has no room."""
    whole, _ = acted(8, None, most=12)
    assert whole.end == "context_limit"
    elided, _ = acted(8, 1, most=12)
    assert (elided.end, len(elided.turns)) == (None, 8)


def test_a_line_of_the_records_brings_the_sequences_back():
    trajectory, _ = acted(5, 1)
    assert decode(encode(trajectory)) == trajectory
    assert "rewritten_at" not in encode(acted(2, None)[0])


def test_padding_counts_sequences():
    trajectory, _ = acted(3, 1)
    assert [b - a for a, b in spans(trajectory)] == [7, 7]
    assert (longest(trajectory), padded([trajectory])) == (7, 14)
    longer = replace(trajectory, tokens_T=[0] * 40, rewritten_at=[9])
    assert padded([trajectory, longer]) == 4 * 31
