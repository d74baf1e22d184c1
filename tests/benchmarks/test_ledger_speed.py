"""The ledger against plain adds of the same gradients, and against the memory's bandwidth.

A binary group of G trajectories costs G adds: G - 2 into its two buckets, 2 in the fold; beyond
them the ledger looks once at the group's sum for values that are not finite, and does its
bookkeeping. The sides alternate inside one run, in processor time, so that other work on the
machine counts little, and their medians are compared. Nothing timed is asserted; the figures go
into extra_info and are printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from harness.gate.alternate import cpu_s
from harness.gate.ledger_work import LedgerWork, tiny_shapes


def large_shapes() -> list[torch.Size]:
    """177 tensors like a transformer's, 29,976,576 parameters: far larger than any cache."""
    shapes = [(512, 1024)] * 57 + [(512,)] * 60 + [(1024,)] * 60
    return [torch.Size(s) for s in shapes]


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.alone
@pytest.mark.benchmark(group="ledger")
@pytest.mark.parametrize(
    ("shapes", "rounds", "size"),
    [
        (tiny_shapes, 101, 8),
        pytest.param(tiny_shapes, 101, 16, marks=pytest.mark.slow),
        pytest.param(large_shapes, 7, 8, marks=pytest.mark.slow),
        pytest.param(large_shapes, 7, 16, marks=pytest.mark.slow),
    ],
)
def test_a_binary_group_against_plain_adds(
    benchmark: BenchmarkFixture, shapes: Callable[[], list[torch.Size]], rounds: int, size: int
) -> None:
    work = LedgerWork(shapes(), size)
    works = (work.streamed, work.same_adds, work.one_accumulator, work.copied)
    seconds: dict[str, list[float]] = {side.__name__: [] for side in works}

    def alternated() -> None:
        for side in works:
            work.refill()
            seconds[side.__name__].append(cpu_s(side))

    benchmark.pedantic(alternated, rounds=rounds, warmup_rounds=1)
    assert len(seconds["streamed"]) == rounds + 1
    assert all(math.isfinite(float(t.sum())) for t in work.total)
    moved = 4 * work.elements * size
    copy_rate = 2 * moved / median(seconds["copied"])
    ledger_rate = 3 * moved / median(seconds["streamed"])
    figures = {
        "parameters": work.elements,
        "group_size": size,
        "ratio_to_same_adds": median(seconds["streamed"]) / median(seconds["same_adds"]),
        "ratio_to_one_accumulator": median(seconds["streamed"])
        / median(seconds["one_accumulator"]),
        "ledger_gb_per_s": ledger_rate / 1e9,
        "copy_gb_per_s": copy_rate / 1e9,
        "share_of_copy_bandwidth": ledger_rate / copy_rate,
    }
    benchmark.extra_info.update(figures)
    print("\n" + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
