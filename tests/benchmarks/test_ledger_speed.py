"""The ledger against plain adds of the same gradients, and against the memory's bandwidth.

A binary group of G trajectories costs G adds: G - 2 into its two buckets, 2 in the fold. The two
sides alternate inside one run and their medians are compared; nothing timed is asserted. Figures go
into extra_info and are printed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from harness.policy.load import load_for_training, resolve
from thundersync.ledger import GradientLedger

ROUNDS = 21
Buffers = list[torch.Tensor]


def tiny_shapes() -> list[torch.Size]:
    """The default policy's 46 tensors, 984,448 parameters: they stay in the processor's cache."""
    return [p.shape for p in load_for_training(resolve("tiny"), torch.float32).parameters()]


def large_shapes() -> list[torch.Size]:
    """177 tensors like a transformer's, 29,976,576 parameters: far larger than any cache."""
    shapes = [(512, 1024)] * 57 + [(512,)] * 60 + [(1024,)] * 60
    return [torch.Size(s) for s in shapes]


def timed(work: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.benchmark(group="ledger")
@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("shapes", [tiny_shapes, large_shapes])
def test_a_binary_group_against_plain_adds(
    benchmark: BenchmarkFixture, shapes: Callable[[], list[torch.Size]], size: int
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

    def plain() -> None:
        for gradient in gradients:
            torch._foreach_add_(total, gradient)  # pyright: ignore[reportPrivateImportUsage]

    def copied() -> None:
        for gradient in gradients:
            torch._foreach_copy_(total, gradient)  # pyright: ignore[reportPrivateImportUsage]

    seconds: dict[str, list[float]] = {"streamed": [], "plain": [], "copied": []}

    def alternated() -> None:
        for name, work in (("streamed", streamed), ("plain", plain), ("copied", copied)):
            refill()
            seconds[name].append(timed(work))

    benchmark.pedantic(alternated, rounds=ROUNDS, warmup_rounds=1)
    assert len(seconds["streamed"]) == ROUNDS + 1
    assert all(math.isfinite(float(t.sum())) for t in total)
    moved = 4 * elements * size
    copy_rate = 2 * moved / median(seconds["copied"])
    ledger_rate = 3 * moved / median(seconds["streamed"])
    figures = {
        "parameters": elements,
        "group_size": size,
        "ratio_to_plain_adds": median(seconds["streamed"]) / median(seconds["plain"]),
        "ledger_gb_per_s": ledger_rate / 1e9,
        "copy_gb_per_s": copy_rate / 1e9,
        "share_of_copy_bandwidth": ledger_rate / copy_rate,
    }
    benchmark.extra_info.update(figures)
    print("\n" + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
