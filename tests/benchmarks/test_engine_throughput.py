"""Generation on one thread: 32 requests of 64 tokens each, prompts of 40 to 300 tokens."""

import random

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from harness.engines.torch_engine import TorchEngine
from harness.policy.load import resolve
from harness.protocols import Completion, Generation

REQUESTS, NEW_TOKENS = 32, 64


@pytest.mark.benchmark(group="engine")
def test_tokens_per_second(benchmark: BenchmarkFixture) -> None:
    draw = random.Random(0)
    prompts = [
        [draw.randrange(3, 1024) for _ in range(draw.randint(40, 300))] for _ in range(REQUESTS)
    ]
    engine = TorchEngine(str(resolve("tiny")), slots=64, max_context=640, threads=1)

    def generate() -> list[Completion]:
        done: list[Completion] = []
        for i, prompt in enumerate(prompts):
            engine.generate(done.append, Generation(str(i), prompt, NEW_TOKENS, 1.0, i, ()))
        while engine.has_work():
            engine.work()
        for i in range(REQUESTS):
            engine.release(str(i))
        return done

    done = benchmark.pedantic(generate, rounds=5, warmup_rounds=1)
    assert [len(c.tokens_T) for c in done] == [NEW_TOKENS] * REQUESTS
    benchmark.extra_info["tokens_per_s"] = REQUESTS * NEW_TOKENS / benchmark.stats.stats.min
