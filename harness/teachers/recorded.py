"""A teacher's scores of an earlier run, found again by the tokens that they are of. Torch-free."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from pathlib import Path

from harness.protocols import Interval, TeacherScores, Trajectory, UsageError
from harness.sequences import begins
from harness.teachers.protocol import ScoreRequest, TeacherError
from harness.trajectory_lines import read


def key(tokens_T: Sequence[int], start: int) -> bytes:
    """Of the tokens from `start` on, given all before them."""
    return hashlib.blake2b(array("q", [start, *tokens_T]).tobytes(), digest_size=16).digest()


def turns(trajectory: Trajectory) -> list[tuple[int, int]]:
    """[start, end) of each run of generated tokens."""
    mask_T = [0, *trajectory.action_mask_T, 0]
    edges = [t for t in range(len(mask_T) - 1) if mask_T[t] != mask_T[t + 1]]
    return list(zip(edges[::2], edges[1::2], strict=True))


class RecordedTeacher:
    """Answers from a trajectories.jsonl of the same temperature (harness.teachers.select compares
    them). A turn that it does not have cannot be scored by waiting: it is lost at once."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[bytes, TeacherScores] = {}

    async def start(self) -> None:
        """Raises UsageError where nothing in the file was scored."""
        for trajectory, _ in read(self._file):
            if trajectory.teacher is not None:
                self._take(trajectory, trajectory.teacher)
        if not self._known:
            raise UsageError(
                f"teacher.file={self._file}: no trajectory in it was scored by a teacher; take the "
                "trajectories.jsonl of a run of objective=opd"
            )

    def _take(self, trajectory: Trajectory, scores: TeacherScores) -> None:
        first = 0
        for start, end in turns(trajectory):
            last = first + end - start
            if last > len(scores.logprobs_N):
                return  # lost before the rest was scored
            begun = begins(trajectory, start)
            self._known[key(trajectory.tokens_T[begun:end], start - begun)] = TeacherScores(
                scores.logprobs_N[first:last],
                scores.top_tokens_NK[first:last],
                scores.top_logprobs_NK[first:last],
            )
            first = last

    async def score(self, request: ScoreRequest) -> TeacherScores:
        scores = self._known.get(key(request.tokens_T, request.start))
        if scores is None:
            raise TeacherError(f"{self._file}: has no scores of these tokens", final=True)
        if not request.top_k:
            return TeacherScores(list(scores.logprobs_N))
        tops = zip(scores.top_tokens_NK, scores.top_logprobs_NK, strict=True)
        kept = [(t[: request.top_k], p[: request.top_k]) for t, p in tops]
        return TeacherScores(list(scores.logprobs_N), [t for t, _ in kept], [p for _, p in kept])

    async def release(self, session: str) -> None:
        """Nothing is kept of a session."""

    async def drain_intervals(self) -> list[Interval]:
        return []

    async def close(self) -> None:
        """Nothing is held."""
