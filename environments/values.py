"""Values that are made by the million: immutable for the type checker, plain when they are made.

A frozen dataclass sets each field through object.__setattr__: one of five fields takes four times
as long to make, and a simulated turn makes about ten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A dataclass with slots, compared and hashed by its fields; nobody may change them."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
