"""Which learner process takes which trajectories. Torch-free: the main process decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from harness import packing
from harness.packing import pack


class Row(packing.Row, Protocol):
    """What is needed of a trajectory here."""

    @property
    def group(self) -> int: ...
    @property
    def reward(self) -> float | None: ...


R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class Placement:
    """One learner process among its `ranks` peers. `parallel`: under ddp each holds all weights,
    under fsdp a shard of each; `sharded` spreads ledgers under ddp too. `rendezvous` is the file by
    which the processes find each other."""

    ranks: int = 1
    parallel: str = "ddp"
    sharded: bool = False
    rank: int = 0
    rendezvous: str = ""
    device: str = "cpu"
    gpu: int | None = None  # of those that the process sees; None: the one of the rank's number
    chunk_tokens: int | None = None  # padded tokens of a pass, where a split makes new ones
    packed: bool = False  # learner.packing=packed: passes have no padding

    @property
    def together(self) -> bool:
        """Whether every rank takes part in every gradient, because each keeps a shard of it."""
        return self.ranks > 1 and (self.sharded or self.parallel == "fsdp")

    def of_rank(self, rank: int, rendezvous: str) -> Placement:
        return replace(self, rank=rank, rendezvous=rendezvous)


@dataclass(frozen=True)
class Part:
    """Trajectories that share a backward pass and a ledger buffer: of one group and one reward, or
    a single one whose reward is unknown. Peers know a part by its ids; its tokens stay on its
    rank."""

    group: int
    reward: float | None
    trajectory_ids: tuple[str, ...]


def parts(rows: Sequence[Row], chunk_tokens: int | None = None, packed: bool = False) -> list[Part]:
    """The backward passes of one rank's captures, in order of first appearance, of at most
    `chunk_tokens` padded tokens each (None: as they come)."""
    found: dict[tuple[int, float | str], list[Row]] = {}
    for row in rows:
        key = row.trajectory_id if row.reward is None else row.reward
        found.setdefault((row.group, key), []).append(row)
    return [
        Part(group, chunk[0].reward, tuple(r.trajectory_id for r in chunk))
        for (group, _), part in found.items()
        for chunk in ([part] if chunk_tokens is None else pack(part, chunk_tokens, packed))
    ]


def alike_together(rows: Sequence[R]) -> list[R]:
    """Rows of a part side by side, so that a split cuts few parts."""
    place = {i: n for n, part in enumerate(parts(rows)) for i in part.trajectory_ids}
    return sorted(rows, key=lambda row: place[row.trajectory_id])


def split(rows: Sequence[R], ranks: int) -> list[list[R]]:
    """Whole rows, in their order, over `ranks` so that the largest number of tokens on a rank is as
    small as it can be; a rank may get none."""
    shares = taken(rows, ranks)
    return shares + [[] for _ in range(ranks - len(shares))]


def taken(rows: Sequence[R], ranks: int) -> list[list[R]]:
    """The shares of `split` that have rows, which are those of the first ranks."""
    lengths = [len(row.tokens_T) for row in rows]
    longest = max(lengths, default=0)
    low = max(longest, -(-sum(lengths) // ranks))
    high = low + longest  # enough: every share but the last is then above the mean
    while low < high:
        middle = (low + high) // 2
        if _shares(lengths, middle) <= ranks:
            high = middle
        else:
            low = middle + 1
    return _filled(rows, low)


def at_home(rows: Sequence[R], ranks: int, homes: Mapping[str, int]) -> list[list[R]]:
    """Shares of `ranks`: a row whose turns a rank has taken goes there, others, the longest first,
    to whichever has the fewest tokens then; each share in the order of `rows`."""
    chosen = {r.trajectory_id: home for r in rows if (home := homes.get(r.trajectory_id, -1)) >= 0}
    tokens = [0] * ranks
    for row in rows:
        if row.trajectory_id in chosen:
            tokens[chosen[row.trajectory_id]] += len(row.tokens_T)
    others = [row for row in rows if row.trajectory_id not in chosen]
    for row in sorted(others, key=lambda r: -len(r.tokens_T)):
        rank = chosen[row.trajectory_id] = tokens.index(min(tokens))
        tokens[rank] += len(row.tokens_T)
    return [[row for row in rows if chosen[row.trajectory_id] == rank] for rank in range(ranks)]


def _shares(lengths: Sequence[int], capacity: int) -> int:
    """How many `_filled` makes."""
    count = room = 0
    for length in lengths:
        if length > room or not count:
            count += 1
            room = capacity
        room -= length
    return count


def _filled(rows: Sequence[R], capacity: int) -> list[list[R]]:
    """Rows in order, each share as full as `capacity` tokens allow (a row alone may exceed it)."""
    shares: list[list[R]] = []
    room = 0
    for row in rows:
        if not shares or len(row.tokens_T) > room:
            shares.append([])
            room = capacity
        shares[-1].append(row)
        room -= len(row.tokens_T)
    return shares
