"""Which rank takes which trajectory, and what schedules hand over to several ranks."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from baselines.sync import Sync
from environments.swebench.config import SweBenchConfig
from harness.config import Config
from harness.learner.placement import Part, alike_together, parts, split
from harness.packing import abreast
from harness.protocols import FoldSpec, StepStats, Trajectory, UsageError
from harness.validation import validate
from thundersync.recorded import RecordedBatch, RecordedRun
from thundersync.stream import Stream
from thundersync.synthetic import arrival, synthetic_groups


def row(name: str, tokens: int, group: int = 0, reward: float | None = None) -> Trajectory:
    return Trajectory(name, "t", "easy", group, 0, 0, tokens_T=[1] * tokens, reward=reward)


def largest(shares: Sequence[Sequence[Trajectory]]) -> int:
    return max(sum(len(t.tokens_T) for t in share) for share in shares)


def best(lengths: Sequence[int], ranks: int) -> int:
    """By trying every way to cut the rows, in their order."""
    cuts = itertools.combinations_with_replacement(range(len(lengths) + 1), ranks - 1)
    return min(
        max(sum(lengths[a:b]) for a, b in itertools.pairwise((0, *cut, len(lengths))))
        for cut in cuts
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_split_is_whole_ordered_and_as_even_as_can_be(ranks):
    draw = random.Random(ranks)
    for _ in range(50):
        lengths = [draw.randint(1, 30) for _ in range(draw.randint(0, 7))]
        rows = [row(str(i), n) for i, n in enumerate(lengths)]
        shares = split(rows, ranks)
        assert len(shares) == ranks
        assert [t for share in shares for t in share] == rows
        assert largest(shares) == best(lengths, ranks)


def test_fewer_rows_than_ranks_leave_ranks_without():
    assert [len(share) for share in split([row("a", 9)], 3)] == [1, 0, 0]
    assert split([], 2) == [[], []]


def test_parts_share_group_and_reward_or_stand_alone():
    rows = [
        row("a", 1, 0, 1.0), row("b", 1, 1, 1.0), row("c", 1, 0, 0.0),
        row("d", 1, 0, 1.0), row("e", 1, 0), row("f", 1, 0),
    ]  # fmt: skip
    assert parts(rows) == [
        Part(0, 1.0, ("a", "d")), Part(1, 1.0, ("b",)), Part(0, 0.0, ("c",)),
        Part(0, None, ("e",)), Part(0, None, ("f",)),
    ]  # fmt: skip
    assert [r.trajectory_id for r in alike_together(rows)] == ["a", "d", "b", "c", "e", "f"]


def test_chunks_abreast():
    chunks = [[row(f"{i}{j}", 1) for j in range(2)] for i in range(5)]
    assert abreast(chunks, 1) == chunks
    handed = [[t.trajectory_id for t in together] for together in abreast(chunks, 2)]
    assert handed == [["00", "01", "10", "11"], ["20", "21", "30", "31"], ["40", "41"]]


class Listener:
    """A learner that only listens."""

    def __init__(self) -> None:
        self.captures: list[list[Trajectory]] = []
        self.accumulates: list[list[Trajectory]] = []
        self.open: set[int] = set()
        self.most_open = 0

    async def capture(self, trajectories: Sequence[Trajectory]) -> None:
        self.captures.append(list(trajectories))
        self.open |= {t.group for t in trajectories}
        self.most_open = max(self.most_open, len(self.open))

    async def accumulate(self, trajectories: Sequence[Trajectory], coefficients: Any) -> None:
        self.accumulates.append(list(trajectories))

    async def fold(self, spec: FoldSpec) -> None:
        self.open.discard(spec.group)

    async def drop(self, group: int) -> None:
        self.open.discard(group)

    async def commit(self, trajectory_id: str, reward: float) -> None: ...

    async def discard(self, trajectory_ids: Sequence[str]) -> None: ...

    async def drain_intervals(self) -> list[Any]:
        return []

    async def step(self, normaliser: float) -> StepStats:
        return StepStats(1, 0.0, False, 0.0, 0, 0)


def listen(
    schedule: type,
    ranks: int,
    release: str,
    cap: int | None = None,
    burst: int = 9,
    reward_delay: int = 4,
) -> Listener:
    config = Config()
    config.learner.ranks, config.schedule.release = ranks, release
    config.ledger.max_open_groups, config.schedule.chunk_tokens = cap, 128
    groups = synthetic_groups(3, 64, (0.0, 1.0))
    batch = RecordedBatch(groups, arrival(groups, 2), burst, reward_delay)
    listener = Listener()
    asyncio.run(schedule(config).run(RecordedRun(listener, config, [batch])))
    return listener


def test_streaming_hands_over_a_chunk_for_each_rank():
    alone, two = listen(Stream, 1, "reward"), listen(Stream, 2, "reward")
    assert all(len({(t.group, t.reward) for t in c}) == 1 for c in alone.captures)
    assert max(len({(t.group, t.reward) for t in c}) for c in two.captures) == 2


def test_each_rank_gets_one_trajectory_whose_reward_is_unknown():
    alone, two = (listen(Stream, n, "submit", burst=n, reward_delay=24) for n in (1, 2))
    assert [len(c) for c in alone.captures] == [1] * 24
    assert [len(c) for c in two.captures] == [2] * 12


def test_the_cap_on_open_groups_holds_between_chunks_of_one_call():
    assert listen(Stream, 4, "reward").most_open > 1
    assert listen(Stream, 4, "reward", cap=1).most_open == 1


def test_the_synchronous_schedule_hands_over_a_chunk_for_each_rank():
    alone, three = listen(Sync, 1, "batch"), listen(Sync, 3, "batch")
    assert three.accumulates == abreast(alone.accumulates, 3)
    assert len(three.accumulates) < len(alone.accumulates)


def test_what_ranks_cannot_be_is_refused():
    def check(devices: int, ranks: int, parallel: str = "ddp", sharded: bool = False) -> None:
        config = Config()
        config.env = SweBenchConfig()
        config.schedule.name, config.schedule.target = "stream", "thundersync.stream:Stream"
        config.schedule.release, config.schedule.learner_devices = "reward", devices
        config.learner.ranks, config.learner.parallel = ranks, parallel
        config.ledger.sharded = sharded
        validate(config)

    check(4, 2)
    check(4, 4, "fsdp")
    check(2, 2, "ddp", sharded=True)
    with pytest.raises(UsageError, match=r"learner\.ranks=2: .*learner_devices=3"):
        check(3, 2)
    with pytest.raises(UsageError, match=r"learner\.parallel=fsdp: .*learner\.ranks=2"):
        check(1, 1, "fsdp")
    with pytest.raises(UsageError, match=r"ledger\.sharded=true: .*learner\.ranks=2"):
        check(1, 1, "ddp", sharded=True)
    with pytest.raises(UsageError, match=r"learner\.parallel=pipeline"):
        check(2, 2, "pipeline")


def test_a_split_keeps_the_bound_of_a_pass():
    """Balanced by tokens, one long row may come to lie beside many short ones: 51,000 padded tokens
    where 2,048 were asked for."""
    rows = [row(f"s{i:02}", 20, reward=1.0) for i in range(50)]
    rows += [row("a", 1000, reward=1.0), row("b", 1000, reward=1.0)]
    known = {r.trajectory_id: r for r in rows}
    for share in split(rows, 2):
        made = [[known[i] for i in part.trajectory_ids] for part in parts(share, 2048)]
        assert sorted(t.trajectory_id for p in made for t in p) == sorted(
            t.trajectory_id for t in share
        )
        assert all(len(p) * max(len(t.tokens_T) for t in p) <= 2048 for p in made)
    assert max(len(part.trajectory_ids) for part in parts(split(rows, 2)[0])) > 50
