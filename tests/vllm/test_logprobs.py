"""vLLM's log-probabilities against transformers and the torch engine: float32, both on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.engines.torch_engine import TorchEngine
from harness.protocols import Generation

# Largest difference of one token's log-probability. Measured: docs/vllm.md.
TOLERANCE = {"tiny": 1e-4, "smollm2": 3e-4}
REQUESTS = {"tiny": (8, 48), "smollm2": (3, 24)}  # how many, and tokens each


@pytest.fixture(params=["tiny", "smollm2"])
def served(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, request.getfixturevalue(request.param)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_they_are_those_of_the_distribution_that_was_sampled(
    served: tuple[str, Any],
    temperature: float,
    score: Callable[..., torch.Tensor],
    replayed: Callable[..., list[float]],
) -> None:
    name, engine = served
    count, new = REQUESTS[name]
    prompts = [list(range(5 + 3 * i, 60 + 17 * i)) for i in range(count)]
    answers = engine.generate(
        *(
            Generation(f"{name}-{temperature}-{i}", prompt, new, temperature, 100 + i, ())
            for i, prompt in enumerate(prompts)
        )
    )
    worst = {"transformers": 0.0, "torch engine": 0.0}
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer.tokens_T) == len(answer.logprobs_T) == new
        assert answer.finish == "length"
        found = torch.tensor(answer.logprobs_T)
        tokens = prompt + answer.tokens_T
        again = replayed(engine.folder, prompt, answer.tokens_T, temperature)
        for against, expected in (
            ("transformers", score(engine.folder, tokens, len(prompt), temperature)),
            ("torch engine", torch.tensor(again)),
        ):
            worst[against] = max(worst[against], float((found - expected).abs().max()))
    print(f"\n{name}, temperature {temperature}: largest differences {worst}")
    assert max(worst.values()) < TOLERANCE[name], worst
    # Samples, not the likeliest tokens; and at another temperature it would be another figure.
    other = score(engine.folder, prompts[0] + answers[0].tokens_T, len(prompts[0]), 1.3)
    assert float((torch.tensor(answers[0].logprobs_T) - other).abs().max()) > 0.05


def test_greedy_tokens_are_those_of_the_torch_engine(tiny: Any) -> None:
    greedy = Generation("greedy", list(range(10, 90)), 32, 0.0, 0, ())
    (answer,) = tiny.generate(greedy)
    here = TorchEngine(str(tiny.folder), slots=1, max_context=256)
    expected: list[Any] = []
    here.generate(expected.append, greedy)
    while here.has_work():
        here.work()
    assert answer.tokens_T == expected[0].tokens_T
    assert answer.logprobs_T == pytest.approx(expected[0].logprobs_T, abs=TOLERANCE["tiny"])


def test_a_stop_token_ends_a_turn_and_seeds_say_what_is_drawn(tiny: Any) -> None:
    def ask(name: str, seed: int, stop: tuple[int, ...] = ()) -> Generation:
        return Generation(name, list(range(10, 90)), 40, 1.0, seed, stop)

    first, again, other = tiny.generate(ask("a", 1), ask("b", 1), ask("c", 2))
    assert first.tokens_T == again.tokens_T != other.tokens_T
    stop = first.tokens_T[9]
    cut = first.tokens_T.index(stop) + 1
    (stopped,) = tiny.generate(ask("d", 1, (stop,)))
    assert (stopped.tokens_T, stopped.finish) == (first.tokens_T[:cut], "stop")
    # The next turn of a session does not repeat its draws.
    (next_turn,) = tiny.generate(ask("a", 1))
    assert next_turn.tokens_T != first.tokens_T
