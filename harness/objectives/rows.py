"""A row of the exactness table: an option, a verdict, and why.

Source: math.md section 4; the rows themselves are in harness/objectives/exactness.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.config import Config, lookup

Verdict = Literal["exact", "exact_with_buckets", "refused"]


@dataclass(frozen=True)
class Bound:
    """A condition on a number; `sample` is a value that meets it."""

    relation: Literal[">", "<", ">="]
    limit: float
    sample: float

    def holds(self, value: float | None) -> bool:
        """A missing value meets no bound."""
        if value is None:
            return False
        if self.relation == ">":
            return value > self.limit
        return value < self.limit if self.relation == "<" else value >= self.limit

    def __str__(self) -> str:
        return f"{self.relation}{self.limit:g}"


@dataclass(frozen=True)
class Row:
    """`option`: dotted key -> value or Bound; all must hold, and an error names the first.
    `nearest` is the nearest exact setting of what is refused, as overrides; `extra` is what an
    example run needs beside the option."""

    option: Mapping[str, Any]
    verdict: Verdict
    why: str
    nearest: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def applies(self, config: Config) -> bool:
        """Whether the configuration takes this option."""
        return all(
            wanted.holds(lookup(config, key))
            if isinstance(wanted, Bound)
            else lookup(config, key) == wanted
            for key, wanted in self.option.items()
        )

    @property
    def example(self) -> dict[str, Any]:
        """Overrides of the default configuration under which the row applies."""
        named = {k: v.sample if isinstance(v, Bound) else v for k, v in self.option.items()}
        return named | dict(self.extra)

    def __str__(self) -> str:
        return ", ".join(
            f"{key}{wanted}" if isinstance(wanted, Bound) else f"{key}={spelt(wanted)}"
            for key, wanted in self.option.items()
        )


def spelt(value: Any) -> str:
    """A value as a command line spells it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
