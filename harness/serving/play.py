"""One round on one engine: requests are handed over as they arrive, and what came is counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from harness.serving.requests import Request

# Tokens made since the last call, and (request, its tokens) of those that are now whole.
Progress = Callable[[int, Sequence[tuple[int, int]]], None]


class Server(Protocol):
    """An engine that is ready. `add` only queues; `step` works for a while and says what it made,
    as often as it can: at least once a call."""

    def add(self, request: Request) -> None: ...

    def step(self, progress: Progress) -> None: ...

    def forget(self) -> None:
        """Between rounds: nothing of the last one is kept."""
        ...

    def close(self) -> None:
        """End what runs beside the caller."""
        ...


@dataclass(frozen=True)
class Round:
    """Seconds on the wall and of processor (all threads of the process). A latency is a request's
    time from its arrival to its last token, in either."""

    tokens: int
    wall_s: float
    processor_s: float
    wall_latencies_s: list[float]
    processor_latencies_s: list[float]

    def row(self) -> dict[str, Any]:
        return asdict(self)


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


class _Play:
    def __init__(self, server: Server, requests: Sequence[Request]) -> None:
        self._server, self._coming = server, list(reversed(requests))
        self._wanted = {r.number: r.new_tokens for r in requests}
        self._made = self._running = 0
        self._arrived: dict[int, tuple[float, float]] = {}
        self.taken: dict[int, tuple[float, float]] = {}

    def go(self) -> None:
        while len(self.taken) < len(self._wanted):
            self._admit()
            self._server.step(self._progress)

    def _admit(self) -> None:
        """Who has arrived; where nothing is left to do, the next one comes at once."""
        while self._coming and (self._coming[-1].after <= self._made or not self._running):
            request = self._coming.pop()
            self._running += 1
            self._arrived[request.number] = _now()
            self._server.add(request)

    def _progress(self, made: int, done: Sequence[tuple[int, int]]) -> None:
        self._made += made
        for number, tokens in done:
            if tokens != self._wanted[number] or number in self.taken:
                raise RuntimeError(
                    f"request {number}: {tokens} tokens came, {self._wanted[number]} were asked for"
                )
            began = self._arrived[number]
            self.taken[number] = _now()[0] - began[0], _now()[1] - began[1]
            self._running -= 1
        self._admit()


def play(server: Server, requests: Sequence[Request]) -> Round:
    """From the first request to the last token. Raises RuntimeError where an answer is not as long
    as was asked for."""
    round_ = _Play(server, requests)
    began = _now()
    round_.go()
    ended = _now()
    server.forget()
    latencies = [round_.taken[r.number] for r in requests]
    return Round(
        sum(r.new_tokens for r in requests),
        ended[0] - began[0],
        ended[1] - began[1],
        [wall for wall, _ in latencies],
        [processor for _, processor in latencies],
    )
