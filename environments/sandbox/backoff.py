"""Trying a start again where the engine is overloaded or away for a moment: how often, how long."""

from __future__ import annotations

import random

from environments.protocols import InfrastructureError

TRIES = 10
_FIRST_S = 0.25
_LONGEST_S = 10.0
GIVE_UP_S = 60.0  # no further try after so long: each one may itself have waited for a time-out
# What engines say, with whatever status, where the machine and not the request is the trouble.
_OVERLOADED = (
    "resource temporarily unavailable",
    "deadline exceeded",
    "timed out",
    "timeout",
    "too many open files",
    "cannot allocate memory",
    "connection refused",
    "connection reset",
)
# 5xx answers that no waiting mends: the request is at fault.
_PERMANENT = ("executable file not found", "no such file or directory", "permission denied")
_random = random.Random()  # its own: jitter must not draw from a generator that a run has seeded


class TemporaryError(InfrastructureError):
    """A failure that may well be over a little later."""


def delay_s(attempt: int) -> float:
    """The wait after the given failed attempt (from 0): doubling, half of it jitter, so that those
    who failed together do not come back together."""
    return min(_LONGEST_S, _FIRST_S * 2.0**attempt) * _random.uniform(0.5, 1.0)


def start_error(what: str, error: Exception) -> InfrastructureError:
    """The engine's refusal of a start in this project's words. `error` is one of the docker
    package's or of the requests package's."""
    from docker.errors import APIError, ImageNotFound

    text = f"{what}: {error}"
    said = str(error).lower()
    if isinstance(error, ImageNotFound):
        return InfrastructureError("image", f"{what}: {error.explanation}")
    if "no space left on device" in said:
        return InfrastructureError("disk", text)
    if any(mark in said for mark in _OVERLOADED) or not isinstance(error, APIError):
        return TemporaryError("start", text)
    status = error.status_code or 0
    if status == 429 or (status >= 500 and not any(mark in said for mark in _PERMANENT)):
        return TemporaryError("start", text)
    return InfrastructureError("start", text)
