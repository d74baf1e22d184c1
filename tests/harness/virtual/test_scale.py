"""What a long run keeps in memory: what is in flight, and nothing of what has passed."""

from __future__ import annotations

import gc
import io
import random
import statistics
import tracemalloc
from pathlib import Path

import pytest

from environments.simulated import workload
from harness import compact, lengths, timings
from harness.composition import compose
from harness.display import Display
from harness.experiment import execute
from harness.job import check
from harness.learner.placement import taken
from harness.protocols import Batch, Release, Run, Trajectory
from thundersync.stream import Stream

SETTLED, SPAN = 2, 6  # updates
UPDATE_BYTES = 10_000  # an update leaves its row of figures; a life that is under way takes more


def test_what_has_passed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates of the same size end with the same memory, once all that keeps a fixed number of
    things is full."""
    monkeypatch.setattr(compact, "TRACE", 100)
    monkeypatch.setattr(workload, "KEPT_BLOCKS", 4)
    monkeypatch.setattr(timings, "KEPT_UPDATES", 1)
    config = compose(
        ["env=simulated", "hardware=64xh100", "workload=swebench_verified", "tracking=none",
         "schedule=stream", "rollout.groups_per_batch=4", "rollout.group_size=4",
         f"budget.limit={SETTLED + 2 * SPAN}"]
    )  # fmt: skip
    check(config)
    held_bytes: list[int] = []
    play = Stream.play

    async def weigh(self: Stream, run: Run, batch: Batch, release: Release) -> None:
        """At an update's start: its lives have not begun, those before it are over."""
        gc.collect()
        held_bytes.append(tracemalloc.get_traced_memory()[0])
        await play(self, run, batch, release)

    monkeypatch.setattr(Stream, "play", weigh)
    gc.collect()
    gc.freeze()  # what was there before the run need not be looked through
    tracemalloc.start()
    try:
        execute(config, tmp_path, Display(io.StringIO()))
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    before, after = held_bytes[SETTLED:-SPAN], held_bytes[-SPAN:]
    grown_bytes = statistics.median(after) - statistics.median(before)
    assert grown_bytes < SPAN * UPDATE_BYTES


@pytest.mark.parametrize("ranks", [1, 7, 1000])
def test_a_split_of_many_rows_needs_no_search_over_all_their_tokens(ranks: int) -> None:
    """What bounds the search holds the answer: one token less, and a rank more is needed."""
    draw = random.Random(ranks)
    rows = [Trajectory(str(n), "t", "easy", 0, n, 0) for n in range(300)]
    for row in rows:
        lengths.extend(row, draw.randint(0, 10**5), generated=True)
    shares = taken(rows, ranks)
    assert [row for share in shares for row in share] == rows
    assert len(shares) <= ranks and all(shares)
    most = max(sum(len(row.tokens_T) for row in share) for share in shares)
    assert most == max(len(row.tokens_T) for row in rows) or _needed(rows, most - 1) > ranks


def _needed(rows: list[Trajectory], capacity: int) -> int:
    """Ranks, where each takes what it can."""
    ranks, room = 0, -1
    for row in rows:
        if len(row.tokens_T) > room:
            ranks, room = ranks + 1, capacity
        room -= len(row.tokens_T)
    return ranks
