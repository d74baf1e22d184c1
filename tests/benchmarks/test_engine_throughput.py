"""Generation on one thread: 32 requests of 64 tokens each, prompts of 40 to 300 tokens."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from harness.gate.engine_work import EngineWork

REQUESTS, NEW_TOKENS = 32, 64


@pytest.mark.slow  # python -m harness.check holds the same work against a plain decoder
@pytest.mark.benchmark(group="engine")
def test_tokens_per_second(benchmark: BenchmarkFixture) -> None:
    work = EngineWork(REQUESTS, NEW_TOKENS)
    done = benchmark.pedantic(work.generate, rounds=5, warmup_rounds=1)
    assert [len(c.tokens_T) for c in done] == [NEW_TOKENS] * REQUESTS
    benchmark.extra_info["tokens_per_s"] = REQUESTS * NEW_TOKENS / benchmark.stats.stats.min
