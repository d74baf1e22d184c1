"""Runs a generated function in this process, with a limit on the lines it may execute.

Only for text that the generator made itself: what an agent wrote runs in a sandbox.
"""

from __future__ import annotations

import builtins
import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

MAX_LINES = 400
_BUILTINS = {n: getattr(builtins, n) for n in ("sum", "len", "max", "min", "any", "all", "abs")} | {
    n: getattr(builtins, n) for n in ("int", "range")
}
_compiled: dict[str, CodeType] = {}


class _TooLong(Exception):
    pass


@dataclass(frozen=True)
class Failure:
    """Stands for the value of a call that raised `error` (an exception's type name)."""

    error: str


def run_function(source: str, name: str, arguments: Sequence[Any]) -> Any:
    """The value of function `name` of `source` on a copy of `arguments`, or a Failure."""
    if source not in _compiled:
        if len(_compiled) > 256:
            _compiled.clear()
        _compiled[source] = compile(source, "mini", "exec")
    names: dict[str, Any] = {"__builtins__": _BUILTINS}
    exec(_compiled[source], names)
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += 1
        if lines > MAX_LINES:
            raise _TooLong
        return trace

    own = copy.deepcopy(list(arguments))
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return names[name](*own)
    except (ArithmeticError, LookupError, NameError, TypeError, ValueError, _TooLong) as error:
        return Failure(type(error).__name__)
    finally:
        sys.settrace(before)
