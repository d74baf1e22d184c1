"""The order of tasks and the packing of backward passes: the same for every schedule."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from harness.protocols import Task, Trajectory
from harness.sequences import longest


class Row(Protocol):
    """What packing needs of a trajectory."""

    @property
    def trajectory_id(self) -> str: ...
    @property
    def tokens_T(self) -> Sequence[int]: ...
    @property
    def rewritten_at(self) -> Sequence[int]: ...


R = TypeVar("R", bound=Row)


def task_order(tasks: Sequence[Task], seed: int) -> Iterator[Task]:
    """Endless task order: a fresh shuffle per epoch, a pure function of the seed and the task
    list."""
    generator = random.Random(seed)
    while True:
        epoch = list(tasks)
        generator.shuffle(epoch)
        yield from epoch


def pack(trajectories: Sequence[R], chunk_tokens: int, packed: bool = False) -> list[list[R]]:
    """Chunks of at most `chunk_tokens` padded tokens, sorted by the length of their longest
    sequence (ties by id) so that padding wastes little; a trajectory longer than that is a chunk of
    its own. `packed` chunks have no padding (learner.packing), and as many tokens."""
    if packed:
        return _side_by_side(trajectories, chunk_tokens)
    chunks: list[list[R]] = []
    sequences = 0  # of the last chunk
    for trajectory in sorted(trajectories, key=lambda t: (longest(t), t.trajectory_id)):
        more = len(trajectory.rewritten_at) + 1
        if chunks and longest(trajectory) * (sequences + more) <= chunk_tokens:
            chunks[-1].append(trajectory)
            sequences += more
        else:
            chunks.append([trajectory])
            sequences = more
    return chunks


def _side_by_side(trajectories: Sequence[R], chunk_tokens: int) -> list[list[R]]:
    """Each trajectory, the longest first, into the first chunk that has room."""
    chunks: list[list[R]] = []
    rooms: list[int] = []
    for trajectory in sorted(trajectories, key=lambda t: (-len(t.tokens_T), t.trajectory_id)):
        length = len(trajectory.tokens_T)
        place = next((n for n, room in enumerate(rooms) if length <= room), None)
        if place is None:
            chunks.append([trajectory])
            rooms.append(chunk_tokens - length)
        else:
            chunks[place].append(trajectory)
            rooms[place] -= length
    return chunks


def abreast(chunks: Sequence[list[Trajectory]], ranks: int) -> list[list[Trajectory]]:
    """What a learner of `ranks` processes takes at once: the trajectories of so many chunks."""
    return [
        [t for chunk in chunks[i : i + ranks] for t in chunk] for i in range(0, len(chunks), ranks)
    ]
