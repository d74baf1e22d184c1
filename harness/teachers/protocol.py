"""The seam between the rollout and whoever scores its tokens. Torch-free."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.protocols import Interval, TeacherScores

_ROUNDING = 1e-3  # by which a sum of probabilities may exceed 1


class TeacherError(Exception):
    """A request that got no usable scores; it may be tried again unless `final`."""

    def __init__(self, message: str, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


@dataclass(frozen=True)
class ScoreRequest:
    """The log-probabilities of tokens [start, end) of `tokens_T`, which ends there, each given all
    before it; `start` is at least 1. Requests of one `session` mostly continue each other."""

    session: str
    tokens_T: Sequence[int]
    start: int
    temperature: float
    top_k: int = 0

    @property
    def end(self) -> int:
        return len(self.tokens_T)


class Teacher(Protocol):
    """A scoring service."""

    async def start(self) -> None: ...

    async def score(self, request: ScoreRequest) -> TeacherScores:
        """Raises TeacherError where it has no answer; what it answers is checked by the caller."""
        ...

    async def release(self, session: str) -> None:
        """Forget what is kept of a session."""
        ...

    async def drain_intervals(self) -> list[Interval]:
        """Busy intervals since the last call."""
        ...

    async def close(self) -> None: ...


def check_scores(request: ScoreRequest, scores: TeacherScores) -> None:
    """Raises TeacherError for scores that are too few, or no log-probabilities: no gradient may be
    made of them."""
    wanted = request.end - request.start
    _check_count("scores", len(scores.logprobs_N), wanted)
    _check_numbers(request, scores.logprobs_N)
    if not request.top_k:
        return
    for name, rows in (("tokens", scores.top_tokens_NK), ("scores", scores.top_logprobs_NK)):
        _check_count(f"lists of likeliest {name}", len(rows), wanted)
        for row in rows:
            _check_count(f"likeliest {name} of a place", len(row), request.top_k)
    for tokens_K, logprobs_K in zip(scores.top_tokens_NK, scores.top_logprobs_NK, strict=True):
        _check_numbers(request, logprobs_K)
        if len(set(tokens_K)) < len(tokens_K):
            raise TeacherError(f"{request.session}: a token is twice among the likeliest")
        if math.fsum(map(math.exp, logprobs_K)) > 1.0 + _ROUNDING:
            raise TeacherError(f"{request.session}: the likeliest tokens' probabilities exceed 1")


def _check_count(what: str, given: int, wanted: int) -> None:
    if given != wanted:
        raise TeacherError(f"{given} {what} where {wanted} were asked for")


def _check_numbers(request: ScoreRequest, logprobs: Sequence[float]) -> None:
    wrong = [p for p in logprobs if not (math.isfinite(p) and p <= _ROUNDING)]
    for value in itertools.islice(wrong, 1):
        raise TeacherError(f"{request.session}: {value} is no log-probability of a token")
