"""A and B in turn inside one process, in its processor time: what their ratio is on any machine.

Other work on the machine takes caches, memory and clock speed away: it only ever adds time. Short
slices that alternate find moments without it, and of each slice its quickest rounds are compared.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

Slice = Callable[[], object]
Pair = tuple[Slice, Slice]


def cpu_s(work: Slice) -> float:
    """Processor seconds of this thread."""
    began_s = time.thread_time()
    work()
    return time.thread_time() - began_s


def alternated(
    make: Callable[[], Sequence[Pair]], rounds: int
) -> tuple[list[list[float]], list[list[float]]]:
    """Seconds of A and of B, for each slice those of every round. `make` gives a round's pairs in
    order; who goes first changes from pair to pair and from round to round. The first round is
    played once more before, and not counted."""
    for pair in make():
        for side in pair:
            side()
    both: tuple[list[list[float]], list[list[float]]] = ([], [])
    gc.collect()
    gc.disable()  # it would come upon one side or the other
    try:
        for number in range(rounds):
            for index, pair in enumerate(make()):
                if number == 0:
                    both[0].append([])
                    both[1].append([])
                order = (0, 1) if (index + number) % 2 == 0 else (1, 0)
                for side in order:
                    both[side][index].append(cpu_s(pair[side]))
    finally:
        gc.enable()
    return both


def quick_s(rounds_s: Sequence[float], kept: int) -> float:
    """Mean of the `kept` quickest rounds."""
    return sum(sorted(rounds_s)[:kept]) / kept


def ratio(make: Callable[[], Sequence[Pair]], rounds: int, kept: int) -> float:
    """Seconds of all of A over those of all of B. Few are kept where the sides need unlike shares
    of the cache, which others at work then slow unlike; half where they are alike."""
    ours, theirs = alternated(make, rounds)
    return sum(quick_s(s, kept) for s in ours) / sum(quick_s(s, kept) for s in theirs)
