"""The same queueing model in virtual time and on simpy.

The model is that of rollouts: lives of turns, each of which takes one of an engine's places for a
while and then thinks for a while. Both sides draw the same times and must end at the same moment.
simpy is one of the development dependencies.
"""

from __future__ import annotations

import random

from harness.protocols import UsageError
from harness.virtual import VirtualClock

TURNS, ENGINES, PLACES = 40, 60, 8


def harness_queues(lives: int) -> float:
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
        for one in [clock.spawn(life(n), f"life-{n}") for n in range(lives)]:
            await one

    clock.run(main())
    return clock.now()


def _simpy():
    try:
        import simpy
    except ModuleNotFoundError as missing:
        raise UsageError("simpy: not installed; pip install -e '.[dev]'") from missing
    return simpy


def simpy_queues(lives: int) -> float:
    simpy = _simpy()
    world, draw = simpy.Environment(), random.Random(0)
    engines = [simpy.Resource(world, PLACES) for _ in range(ENGINES)]

    def life(number: int):
        engine = engines[number % ENGINES]
        for _ in range(TURNS):
            with engine.request() as place:
                yield place
                yield world.timeout(draw.random())
            yield world.timeout(draw.random())

    for number in range(lives):
        world.process(life(number))
    world.run()
    return world.now


def harness_bare(lives: int) -> float:
    """Sleeps alone."""
    clock, draw = VirtualClock(), random.Random(0)

    async def life() -> None:
        for _ in range(2 * TURNS):
            await clock.sleep(draw.random())

    async def main() -> None:
        for one in [clock.spawn(life(), f"life-{n}") for n in range(lives)]:
            await one

    clock.run(main())
    return clock.now()


def simpy_bare(lives: int) -> float:
    simpy = _simpy()
    world, draw = simpy.Environment(), random.Random(0)

    def life():
        for _ in range(2 * TURNS):
            yield world.timeout(draw.random())

    for _ in range(lives):
        world.process(life())
    world.run()
    return world.now
