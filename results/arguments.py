"""What the small tables are asked for on a command line: paths, and KEY=VALUE."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path


def parse(
    given: Sequence[str], keys: Sequence[str], usage: str,
    needed: Sequence[str] = (), at_least: int | None = None,
) -> tuple[list[str], dict[str, str]] | None:  # fmt: skip
    """The paths (exactly one, or `at_least` so many) and the options; None after a line of usage on
    standard error, where something is missing, empty or not known."""
    options = dict(a.split("=", 1) for a in given if "=" in a)
    paths = [a for a in given if "=" not in a]
    enough = len(paths) == 1 if at_least is None else len(paths) >= at_least
    known = set(needed) <= set(options) <= set(keys) and all(options.values())
    if enough and known:
        return paths, options
    print(f"usage: python -m {usage}", file=sys.stderr)
    return None


def give(table: str, left_out: Iterable[object], out: str | None) -> None:
    """Tell of the runs that were left out; the table to standard output, and to `out` if given."""
    for left in left_out:
        print(f"left out: {left}", file=sys.stderr)
    if out is not None:
        Path(out).write_text(table, encoding="utf-8")
    print(table)
