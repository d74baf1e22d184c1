"""Virtual time against the same queueing model written on simpy, in processor time of one run.

They alternate, and their best rounds are compared: other work on the machine only ever adds time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from harness.gate.alternate import cpu_s
from harness.gate.clock_work import (
    TURNS,
    harness_bare,
    harness_queues,
    simpy_bare,
    simpy_queues,
)

LIVES = 1000
ROUNDS = 3


@pytest.mark.alone
@pytest.mark.benchmark(group="virtual time")
@pytest.mark.parametrize(
    ("ours", "theirs"), [(harness_queues, simpy_queues), (harness_bare, simpy_bare)]
)
def test_at_least_0_8_of_simpy_s_speed(
    benchmark: BenchmarkFixture, ours: Callable[[int], float], theirs: Callable[[int], float]
) -> None:
    assert ours(LIVES) == pytest.approx(theirs(LIVES), rel=0.05)  # the same model, warmed up
    ours_s, theirs_s = [], []

    def round_of_both() -> None:
        ours_s.append(cpu_s(lambda: ours(LIVES)))
        theirs_s.append(cpu_s(lambda: theirs(LIVES)))

    benchmark.pedantic(round_of_both, rounds=ROUNDS)
    events = 2 * LIVES * TURNS
    ratio = min(theirs_s) / min(ours_s)
    benchmark.extra_info["events_per_s"] = events / min(ours_s)
    benchmark.extra_info["simpy_events_per_s"] = events / min(theirs_s)
    benchmark.extra_info["ratio"] = ratio
    print(f"\n{events / min(ours_s):,.0f} events/s, {ratio:.2f} x simpy's")
    assert ratio >= 0.8
