"""The ratios of the gate: which there are, how far each may move, and a process that measures them.

A figure is what our code takes beside a fixed computation of the same kind, so that a machine's
speed cancels. A process has its own memory layout, which shifts such a ratio by a percent or two
for as long as it lives: every look is made in a new process. One look within the tolerance passes;
beyond it two more are taken, and the figure has moved where all three agree.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.cluster.local import Worker
from harness.gate.alternate import Pair, ratio
from harness.gate.reference import Entry, within

SERVICE = "harness.gate.speeds:Speeds"
LOOKS = 3
GROUP = 8  # trajectories of the ledger's group
ROWS, NEW_TOKENS = 16, 24  # the engine's requests
UPDATES = 2  # that a schedule plays
TIMES = 20  # of the plain bookkeeping beside them
LIVES = 100  # in the queues


@dataclass(frozen=True)
class Speed:
    """`make` prepares what `rounds` rounds of the ratio need; it gives the pairs of a round. The
    `kept` quickest rounds of each slice count."""

    make: Callable[[], Callable[[], Sequence[Pair]]]
    rounds: int
    kept: int
    tolerance: float
    unit: str


def _ledger() -> Callable[[], Sequence[Pair]]:
    from harness.gate.ledger_work import LedgerWork, tiny_shapes

    work = LedgerWork(tiny_shapes(), GROUP)

    def round_of_both() -> Sequence[Pair]:
        work.refill()  # the ledger sums in the place of what it is given
        return [(work.streamed, work.same_adds)]

    return round_of_both


def _engine() -> Callable[[], Sequence[Pair]]:
    from harness.gate.engine_work import EngineWork, PlainDecoder

    slices = EngineWork(ROWS, NEW_TOKENS).slices(1)
    plain = PlainDecoder(ROWS)
    pairs = [(slice_, lambda: plain.steps(1)) for slice_ in slices]
    return lambda: pairs


def _clock() -> Callable[[], Sequence[Pair]]:
    from harness.gate.clock_work import harness_queues, simpy_queues

    return lambda: [(lambda: harness_queues(LIVES), lambda: simpy_queues(LIVES))]


def _schedule(*overrides: str) -> Callable[[], Callable[[], Sequence[Pair]]]:
    def make() -> Callable[[], Sequence[Pair]]:
        from harness.gate.rehearsal import PlainBookkeeping, ScheduleWork

        work, plain = ScheduleWork(overrides, UPDATES), PlainBookkeeping(64)

        def round_of_both() -> Sequence[Pair]:
            work.prepare()
            return [(work.play, lambda: plain.work(TIMES))]

        return round_of_both

    return make


_OWN_TIME = "x plain bookkeeping"
SPEEDS = {
    "speed/ledger": Speed(_ledger, 80, 40, 0.075, "x the same adds"),
    "speed/engine": Speed(_engine, 16, 8, 0.075, "x plain decoder steps"),
    "speed/clock": Speed(_clock, 50, 5, 0.075, "x simpy"),
    "speed/sync": Speed(_schedule("schedule=sync"), 250, 3, 0.075, _OWN_TIME),
    "speed/one_step_off": Speed(_schedule("schedule=one_step_off"), 250, 3, 0.075, _OWN_TIME),
    "speed/async_4": Speed(_schedule("schedule=async_4"), 250, 3, 0.075, _OWN_TIME),
    "speed/stream_reward": Speed(_schedule("schedule=stream"), 250, 3, 0.075, _OWN_TIME),
    "speed/stream_submit": Speed(
        _schedule("schedule=stream", "schedule.release=submit"), 250, 3, 0.075, _OWN_TIME
    ),
}


class Speeds:
    """The service of a measuring process, on one thread."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)

    def measure(self, name: str) -> float:
        """One look at a ratio."""
        speed = SPEEDS[name]
        return ratio(speed.make(), speed.rounds, speed.kept)


async def look(names: Sequence[str]) -> dict[str, float]:
    """Every ratio once, in a new process whose hashing has a fixed seed."""
    os.environ["PYTHONHASHSEED"] = "0"  # else the order of sets differs from look to look
    worker = Worker("measurement", SERVICE, {}, threads=1)
    try:
        await worker.start()
        return {name: await worker.call("measure", name) for name in names}
    finally:
        await worker.close()


def measure(
    names: Sequence[str], reference: dict[str, Entry], say: Callable[[str], None]
) -> dict[str, Entry]:
    """One look at each, two more at what is beyond the reference's tolerance. Of several looks the
    one nearest to the reference counts: it moves where all agree."""
    looks = {name: [value] for name, value in asyncio.run(look(names)).items()}
    for _ in range(LOOKS - 1):
        beyond = [n for n in names if not _passes(reference.get(n), looks[n])]
        if not beyond:
            break
        say(f"beyond their tolerance, looked at again: {', '.join(beyond)}")
        for name, value in asyncio.run(look(beyond)).items():
            looks[name].append(value)
    return {name: _entry(name, _nearest(reference.get(name), looks[name])) for name in names}


def _passes(expected: Entry | None, values: Sequence[float]) -> bool:
    if expected is None or expected.rule != "ratio":
        return True  # it is moved, whatever is measured
    return any(within(expected, value) for value in values)


def _nearest(expected: Entry | None, values: Sequence[float]) -> float:
    if expected is None:
        return statistics.median(values)
    return min(values, key=lambda value: abs(value - expected.value))


def measure_anew(names: Sequence[str], say: Callable[[str], None]) -> dict[str, Entry]:
    """For the reference: the median of several looks."""
    looks = [asyncio.run(look(names)) for _ in range(LOOKS)]
    for name in names:
        values = sorted(found[name] for found in looks)
        spread = values[-1] / values[0] - 1
        say(f"{name}: {', '.join(f'{v:.4g}' for v in values)} (they differ by {spread:.1%})")
    return {name: _entry(name, statistics.median(found[name] for found in looks)) for name in names}


def _entry(name: str, value: float) -> Entry:
    return Entry(value, "ratio", SPEEDS[name].unit, SPEEDS[name].tolerance)
