"""Virtual time against the same queueing model written on simpy, in processor time of one run.

The model is that of rollouts: lives of turns, each of which takes one of an engine's places for a
while and then thinks for a while. Both sides draw the same times and must end at the same moment.
They alternate, and their best rounds are compared: other work on the machine only ever adds time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
import simpy
from pytest_benchmark.fixture import BenchmarkFixture

from harness.virtual import VirtualClock

LIVES, TURNS, ENGINES, PLACES = 1000, 40, 60, 8
ROUNDS = 3


def harness_queues() -> float:
    """The time at which the last life ends."""
    clock, draw = VirtualClock(), random.Random(0)
    engines = [clock.semaphore(PLACES) for _ in range(ENGINES)]

    async def life(number: int) -> None:
        engine = engines[number % ENGINES]
        for _ in range(TURNS):
            async with engine:
                await clock.sleep(draw.random())
            await clock.sleep(draw.random())

    async def main() -> None:
        for one in [clock.spawn(life(n), f"life-{n}") for n in range(LIVES)]:
            await one

    clock.run(main())
    return clock.now()


def simpy_queues() -> float:
    world, draw = simpy.Environment(), random.Random(0)
    engines = [simpy.Resource(world, PLACES) for _ in range(ENGINES)]

    def life(number: int):
        engine = engines[number % ENGINES]
        for _ in range(TURNS):
            with engine.request() as place:
                yield place
                yield world.timeout(draw.random())
            yield world.timeout(draw.random())

    for number in range(LIVES):
        world.process(life(number))
    world.run()
    return world.now


def harness_bare() -> float:
    """Sleeps alone."""
    clock, draw = VirtualClock(), random.Random(0)

    async def life() -> None:
        for _ in range(2 * TURNS):
            await clock.sleep(draw.random())

    async def main() -> None:
        for one in [clock.spawn(life(), f"life-{n}") for n in range(LIVES)]:
            await one

    clock.run(main())
    return clock.now()


def simpy_bare() -> float:
    world, draw = simpy.Environment(), random.Random(0)

    def life():
        for _ in range(2 * TURNS):
            yield world.timeout(draw.random())

    for _ in range(LIVES):
        world.process(life())
    world.run()
    return world.now


def cpu_s(work: Callable[[], float]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


@pytest.mark.benchmark(group="virtual time")
@pytest.mark.parametrize(
    ("ours", "theirs"), [(harness_queues, simpy_queues), (harness_bare, simpy_bare)]
)
def test_at_least_0_8_of_simpy_s_speed(
    benchmark: BenchmarkFixture, ours: Callable[[], float], theirs: Callable[[], float]
) -> None:
    assert ours() == pytest.approx(theirs(), rel=0.05)  # the same model, warmed up
    ours_s, theirs_s = [], []

    def round_of_both() -> None:
        ours_s.append(cpu_s(ours))
        theirs_s.append(cpu_s(theirs))

    benchmark.pedantic(round_of_both, rounds=ROUNDS)
    events = 2 * LIVES * TURNS
    ratio = min(theirs_s) / min(ours_s)
    benchmark.extra_info["events_per_s"] = events / min(ours_s)
    benchmark.extra_info["simpy_events_per_s"] = events / min(theirs_s)
    benchmark.extra_info["ratio"] = ratio
    print(f"\n{events / min(ours_s):,.0f} events/s, {ratio:.2f} x simpy's")
    assert ratio >= 0.8
