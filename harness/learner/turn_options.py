"""How a learner takes turns. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TurnOptions:
    """The settings `segments.*`. Unless `required` (schedule.release=auto) a model whose turns have
    no exact gradients is no error. `retain_from` stands for a measurement."""

    target: str
    way: str
    max_live_bytes: int | None
    chunk_tokens: int
    required: bool = True
    retain_from: int | None = None
