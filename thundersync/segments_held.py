"""What is held of a trajectory under way, and what is told of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from thundersync.segments_pass import Scored
from thundersync.segments_past import Store

Way = Literal["retain", "sweep", "whole"]
WAYS: tuple[Way, ...] = ("retain", "sweep", "whole")


@dataclass(frozen=True)
class Fallback:
    """From turn `turn` on (counted from 0) a trajectory holds less than it was meant to."""

    trajectory_id: str
    turn: int
    way: Way
    live_bytes: int
    needed_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.trajectory_id}: {self.way} from turn {self.turn} on; {self.needed_bytes} bytes "
            f"beside {self.live_bytes} live ones exceed segments.max_live_bytes={self.limit_bytes}"
        )


@dataclass(frozen=True)
class Finished:
    """What a trajectory's gradient was made of: input positions whose graph had been retained, that
    were run again, and action tokens."""

    trajectory_id: str
    turns: int
    retained_tokens: int
    rerun_tokens: int
    action_tokens: int


@dataclass
class Piece:
    """Input positions [start, end); `scored` has their graph, if it was retained."""

    start: int
    end: int
    scored: Scored | None = None
    graph_bytes: int = 0


@dataclass
class Held:
    """A trajectory's tokens so far; inputs [0, fed) have their keys and values in `store`, which is
    None once only tokens are held. `old_bytes`: buffers that `store` left and graphs still hold."""

    store: Store | None
    weights: int
    tokens_T: list[int] = field(default_factory=list)
    action_mask_T: list[int] = field(default_factory=list)
    turns: int = 0
    fed: int = 0
    retained: list[Piece] = field(default_factory=list)
    old_bytes: int = 0

    @property
    def inputs(self) -> int:
        """Positions that predict a token: all but the last."""
        return max(len(self.tokens_T) - 1, 0)

    @property
    def live_bytes(self) -> int:
        """Of graphs, keys and values."""
        store = self.store.held_bytes if self.store is not None else 0
        return store + self.old_bytes + sum(piece.graph_bytes for piece in self.retained)

    def release_graphs(self) -> None:
        self.retained.clear()
        self.old_bytes = 0
