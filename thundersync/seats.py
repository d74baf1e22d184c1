"""Which rank of a learner holds which running trajectory's turns."""

from __future__ import annotations

from collections import Counter


class Seats:
    """`of` maps a trajectory to its rank, from its first turns on."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self._held: Counter[int] = Counter()  # tokens of each rank

    def place(self, name: str, ranks: int) -> int:
        """The trajectory's rank, or the one of `ranks` that a new one goes to: which holds the
        fewest tokens."""
        seat = self.of.get(name)
        return min(range(ranks), key=lambda rank: self._held[rank]) if seat is None else seat

    def hold(self, name: str, seat: int, tokens: int) -> None:
        """The rank holds so many tokens of it now."""
        self.of[name] = seat
        self._held[seat] += tokens - self._tokens.get(name, 0)
        self._tokens[name] = tokens

    def leave(self, name: str) -> None:
        """Nothing is held of it any more, if anything was."""
        seat = self.of.pop(name, None)
        if seat is not None:
            self._held[seat] -= self._tokens.pop(name)
