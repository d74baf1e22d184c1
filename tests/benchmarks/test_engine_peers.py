"""engine=torch beside the two ways that transformers generates: python -m harness.throughput, whose
page (docs/engine.md) has vLLM as well."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from harness import throughput


@pytest.mark.slow
@pytest.mark.benchmark(group="engine: beside its peers")
def test_ratio_to_transformers(benchmark: BenchmarkFixture) -> None:
    options = throughput.parse(["rounds=3"])
    rounds = benchmark.pedantic(throughput.measure, args=(options,), rounds=1)
    found = throughput.report(options, rounds)
    for scenario, said in found["scenarios"].items():
        for name, row in said["engines"].items():
            benchmark.extra_info[f"{scenario}/{name}"] = row["tokens_per_s"]["mean"]
            if "ratio" in row:
                benchmark.extra_info[f"{scenario}/torch over {name}"] = row["ratio"]["mean"]
                assert row["ratio"]["mean"] > 1  # measured here at 1.9 and more
