"""The order of tasks and the packing of backward passes: the same for every schedule."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from harness.protocols import Task, Trajectory


class Row(Protocol):
    """What packing needs of a trajectory."""

    @property
    def trajectory_id(self) -> str: ...
    @property
    def tokens_T(self) -> Sequence[int]: ...


R = TypeVar("R", bound=Row)


def task_order(tasks: Sequence[Task], seed: int) -> Iterator[Task]:
    """Endless task order: a fresh shuffle per epoch, a pure function of the seed and the task
    list."""
    generator = random.Random(seed)
    while True:
        epoch = list(tasks)
        generator.shuffle(epoch)
        yield from epoch


def pack(trajectories: Sequence[R], chunk_tokens: int) -> list[list[R]]:
    """Chunks of at most `chunk_tokens` padded tokens, sorted by length (ties by id) so that padding
    wastes little; a trajectory longer than that is a chunk of its own."""
    chunks: list[list[R]] = []
    for trajectory in sorted(trajectories, key=lambda t: (len(t.tokens_T), t.trajectory_id)):
        padded = len(trajectory.tokens_T) * (len(chunks[-1]) + 1) if chunks else 0
        if chunks and padded <= chunk_tokens:
            chunks[-1].append(trajectory)
        else:
            chunks.append([trajectory])
    return chunks


def abreast(chunks: Sequence[list[Trajectory]], ranks: int) -> list[list[Trajectory]]:
    """What a learner of `ranks` processes takes at once: the trajectories of so many chunks."""
    return [
        [t for chunk in chunks[i : i + ranks] for t in chunk] for i in range(0, len(chunks), ranks)
    ]
