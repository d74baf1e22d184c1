"""The requests of one round, the same for every engine: nothing here but the standard library, as
peers run in environments of their own.

`together`: all are there at the start and want equally many tokens. `random`: they come and go. A
request arrives once the engine has made `after` tokens in all: an engine twice as fast gets its
requests twice as fast, so that every engine serves the same numbers at a time, which times in
seconds would not give. Gaps are exponential with the mean length of an answer, so that on average
one comes as one leaves.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, get_args

Scenario = Literal["together", "random"]
SCENARIOS: tuple[Scenario, ...] = get_args(Scenario)
PROMPT_TOKENS = (40, 300)  # about those of a turn of the bundled tasks
SPREAD = 8  # random answers have 1/SPREAD to 2 - 1/SPREAD times the mean


@dataclass(frozen=True)
class Request:
    """A prompt, how many tokens follow it, and after how many tokens of all requests it comes.
    `streamed`: others wait for its tokens, so that they must be counted as they come."""

    number: int
    prompt_T: list[int]
    new_tokens: int
    after: int
    streamed: bool


def make(
    scenario: Scenario, count: int, new_tokens: int, vocabulary: int, seed: int
) -> list[Request]:
    """In order of arrival. In `random` half of them are there at the start."""
    draw = random.Random(f"{scenario} {seed}")
    after, requests = 0.0, list[Request]()
    for number in range(count):
        prompt = [draw.randrange(3, vocabulary) for _ in range(draw.randint(*PROMPT_TOKENS))]
        length = new_tokens
        if scenario == "random":
            length = round(new_tokens * draw.uniform(1 / SPREAD, 2 - 1 / SPREAD))
            if number >= (count + 1) // 2:
                after += draw.expovariate(1 / new_tokens)
        streamed = scenario == "random"
        requests.append(Request(number, prompt, max(1, length), int(after), streamed))
    return requests


def longest(new_tokens: int) -> int:
    """The tokens of context that any request needs at most."""
    return PROMPT_TOKENS[1] + 2 * new_tokens
