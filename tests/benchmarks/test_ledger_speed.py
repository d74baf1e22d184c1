"""The ledger against plain adds of the same gradients, and against the memory's bandwidth.

A binary group of G trajectories costs G adds: G - 2 into its two buckets, 2 in the fold; beyond
them the ledger looks once at the group's sum for values that are not finite, and does its
bookkeeping. The sides alternate inside one run, in processor time, so that other work on the
machine counts little, and their medians are compared. Nothing timed is asserted; the figures go
into extra_info and are printed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import (
    _foreach_add_ as add_,  # pyright: ignore[reportPrivateImportUsage]
)

from harness.policy.load import load_for_training, resolve
from thundersync.ledger import GradientLedger

Buffers = list[torch.Tensor]


def tiny_shapes() -> list[torch.Size]:
    """The default policy's 46 tensors, 984,448 parameters: they stay in the processor's cache."""
    return [p.shape for p in load_for_training(resolve("tiny"), torch.float32).parameters()]


def large_shapes() -> list[torch.Size]:
    """177 tensors like a transformer's, 29,976,576 parameters: far larger than any cache."""
    shapes = [(512, 1024)] * 57 + [(512,)] * 60 + [(1024,)] * 60
    return [torch.Size(s) for s in shapes]


def timed(work: Callable[[], None]) -> float:
    began_s = time.thread_time()
    work()
    return time.thread_time() - began_s


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.benchmark(group="ledger")
@pytest.mark.parametrize(
    ("shapes", "rounds", "size"),
    [
        (tiny_shapes, 101, 8),
        (tiny_shapes, 101, 16),
        (large_shapes, 7, 8),
        pytest.param(large_shapes, 7, 16, marks=pytest.mark.slow),
    ],
)
def test_a_binary_group_against_plain_adds(
    benchmark: BenchmarkFixture, shapes: Callable[[], list[torch.Size]], rounds: int, size: int
) -> None:
    made = shapes()
    elements = sum(s.numel() for s in made)
    source = [torch.randn(s) for s in made]
    gradients = [[torch.empty(s) for s in made] for _ in range(size)]
    total = [torch.zeros(s) for s in made]
    rewards = [float(i % 2) for i in range(size)]
    known = {str(i): (r, 1.0 if r else -1.0) for i, r in enumerate(rewards)}
    ledger = GradientLedger("auto")

    def refill() -> None:
        """The ledger sums in the place of what it is given."""
        for gradient in gradients:
            torch._foreach_copy_(gradient, source)  # pyright: ignore[reportPrivateImportUsage]

    def streamed() -> None:
        for i, gradient in enumerate(gradients):
            ledger.capture(0, [str(i)], list(gradient))
            ledger.commit([str(i)], rewards[i])
        ledger.fold(0, known, total)
        ledger.end_of_update()

    def same_adds() -> None:
        """What the ledger adds, without the ledger."""
        for i in range(2, size):
            add_(gradients[i % 2], gradients[i])
        add_(gradients[1], gradients[0], alpha=-1.0)
        add_(total, gradients[1])

    def one_accumulator() -> None:
        """One buffer that stays in the cache, where the ledger's two buckets take turns."""
        for gradient in gradients:
            add_(total, gradient)

    def copied() -> None:
        for gradient in gradients:
            torch._foreach_copy_(total, gradient)  # pyright: ignore[reportPrivateImportUsage]

    works = (streamed, same_adds, one_accumulator, copied)
    seconds: dict[str, list[float]] = {work.__name__: [] for work in works}

    def alternated() -> None:
        for work in works:
            refill()
            seconds[work.__name__].append(timed(work))

    benchmark.pedantic(alternated, rounds=rounds, warmup_rounds=1)
    assert len(seconds["streamed"]) == rounds + 1
    assert all(math.isfinite(float(t.sum())) for t in total)
    moved = 4 * elements * size
    copy_rate = 2 * moved / median(seconds["copied"])
    ledger_rate = 3 * moved / median(seconds["streamed"])
    figures = {
        "parameters": elements,
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
