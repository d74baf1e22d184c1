"""SIGINT and SIGTERM as one exception, so that clean-up runs first and the exit code says which."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


class Interrupted(BaseException):
    """A signal asked the run to end. Not an `Exception`: a sweep must stop, not go on."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """130 on SIGINT, 143 on SIGTERM."""
        return 128 + self.signum


@contextlib.contextmanager
def signals_raise(first: Callable[[int], None] = lambda signum: None) -> Iterator[None]:
    """Within the block SIGINT and SIGTERM raise `Interrupted` in the main thread, after `first`."""

    def stop(signum: int, frame: FrameType | None) -> None:
        first(signum)
        raise Interrupted(signum)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
