"""What every engine of a comparison is given alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """`slots` answers at a time of at most `context` tokens, prompt included."""

    policy: str
    slots: int
    context: int
