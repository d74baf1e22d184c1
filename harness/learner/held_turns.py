"""What a learner on paper holds of running trajectories: counted, as the real one holds it."""

from __future__ import annotations

from collections import Counter

from harness.protocols import TurnStats


class HeldTurns:
    """Tokens of turns that were passed forward, on the rank that took a trajectory's first. Past
    `max_bytes` of a rank a trajectory is held as its tokens alone, and taken whole at its end."""

    def __init__(self, ranks: int, token_bytes: float, max_bytes: int | None) -> None:
        self._token_bytes, self._max_bytes = token_bytes, max_bytes
        self.homes: dict[str, int] = {}  # of everything that was begun
        self._read: dict[str, int] = {}  # tokens passed forward; 0 where nothing is held of them
        self._held: Counter[int] = Counter()  # of each rank, tokens
        self._trajectories = self._finished = self._fallbacks = 0
        self._fallback = ""
        self._peak_bytes = 0.0

    def extend(self, rank: int, name: str, tokens: int) -> int | None:
        """How many of the trajectory's first `tokens` tokens were there before; None where it can
        be held no more, and nothing is done. Raises ValueError for a rank that is not its own."""
        if self.homes.setdefault(name, rank) != rank:
            raise ValueError(f"{name}: its turns are on rank {self.homes[name]}, not on {rank}")
        before = self._read.get(name)
        if before == 0:
            return None
        self._trajectories += before is None
        before = before or 0
        held_bytes = (self._held[rank] + tokens - before) * self._token_bytes
        if self._max_bytes is not None and held_bytes > self._max_bytes:
            self._fallbacks += 1
            self._fallback = self._fallback or (
                f"{name}: {held_bytes:.0f} bytes on rank {rank}, more than "
                f"segments.max_live_bytes={self._max_bytes}; it is taken whole at its end"
            )
            self._held[rank] -= before
            self._read[name] = 0
            return None
        self._held[rank] += tokens - before
        self._read[name] = tokens
        self._peak_bytes = max(self._peak_bytes, held_bytes)
        return before

    def take(self, name: str) -> int:
        """For its backward pass: how many of its tokens were passed forward, if any."""
        read = self.forget(name)
        self._finished += read
        return read

    def forget(self, name: str) -> int:
        """Nothing is held of it any more."""
        read = self._read.pop(name, 0)
        if (rank := self.homes.pop(name, None)) is not None:
            self._held[rank] -= read
        return read

    def end_of_update(self, recomputes: bool) -> TurnStats | None:
        """What the update's turns came to, None where there were none; `recomputes`: the end ran
        them again. Raises ValueError where a trajectory is under way."""
        if self.homes:
            names = ", ".join(sorted(self.homes))
            raise ValueError(f"turns of {names} were neither used nor given up")
        stats = TurnStats(
            self._trajectories, 0 if recomputes else self._finished,
            self._finished if recomputes else 0, self._fallbacks, self._fallback,
            round(self._peak_bytes),
        )  # fmt: skip
        begun = self._trajectories > 0
        self._trajectories = self._finished = self._fallbacks = 0
        self._fallback, self._peak_bytes = "", 0.0
        return stats if begun else None
