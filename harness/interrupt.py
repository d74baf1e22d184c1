"""SIGINT, SIGTERM and a launcher's signal as one exception: clean-up runs first, the exit code says
which."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

from harness.virtual import VirtualClock

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LAUNCHER = (signal.SIGUSR1, signal.SIGUSR2)
_COLLECT = (50_000, 20, 20)
"""Garbage thresholds in virtual time: trajectories live until their update ends, so that looking
through the young ones finds next to nothing, and takes a tenth of a run."""


class Interrupted(BaseException):
    """A signal asked the run to end. Not an `Exception`: a sweep must stop, not go on."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """130 on SIGINT, 143 on SIGTERM."""
        return 128 + self.signum


def _signals() -> list[signal.Signals]:
    """What ends a run: also the signal by which a cluster's launcher is told that its job has to
    make room, where one has set a handler for it."""
    return [*_SIGNALS, *(n for n in _LAUNCHER if callable(signal.getsignal(n)))]


def hand_back(interrupted: Interrupted) -> None:
    """After the clean-up of a job that had to make room: the launcher's own handler queues it again
    and ends the process. Nothing for any other interruption."""
    if interrupted.signum in _LAUNCHER:
        signal.raise_signal(interrupted.signum)


@contextlib.contextmanager
def signals_raise(first: Callable[[int], None] = lambda signum: None) -> Iterator[None]:
    """Within the block the signals that end a run raise `Interrupted` in the main thread, after
    `first`."""

    def stop(signum: int, frame: FrameType | None) -> None:
        first(signum)
        raise Interrupted(signum)

    before = {number: signal.signal(number, stop) for number in _signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_virtual(clock: VirtualClock, coroutine: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine in virtual time; SIGINT and SIGTERM raise `Interrupted` in it, where it
    waits."""

    def stop(signum: int, frame: FrameType | None) -> None:
        clock.interrupt(Interrupted(signum))

    before = {number: signal.signal(number, stop) for number in _signals()}
    thresholds = gc.get_threshold()
    gc.set_threshold(*_COLLECT)
    try:
        return clock.run(coroutine)
    finally:
        gc.set_threshold(*thresholds)
        for number, handler in before.items():
            signal.signal(number, handler)


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """asyncio.run in which SIGINT and SIGTERM cancel the coroutine, once: its clean-up runs to the
    end, then `Interrupted` is raised. (An exception raised by a signal handler inside the loop
    would land in whatever task happened to run.)"""
    caught: list[int] = []

    async def supervised() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop(number: int) -> None:
            if not caught and task is not None:
                caught.append(number)
                task.cancel()

        for number in _signals():
            loop.add_signal_handler(number, stop, number)
        return await coroutine

    previous = {number: signal.getsignal(number) for number in _signals()}
    try:
        return asyncio.run(supervised())
    except asyncio.CancelledError:
        if caught:
            raise Interrupted(caught[0]) from None
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
