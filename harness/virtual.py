"""Virtual time behind the Clock protocol: an event heap that drives plain coroutines, no asyncio.

What happens at one moment happens in the order in which it was asked for, so that two runs of the
same seed are the same to the byte. A coroutine waits by yielding: a float is a sleep of so many
seconds, a `Future` is waited for. Nothing here ever waits in real time.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from heapq import heappop, heappush
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")


class Cancelled(BaseException):
    """Raised where a cancelled coroutine waits. Not an `Exception`, as asyncio's is none."""


class Deadlock(RuntimeError):
    """Something waits and nothing is left to happen: a defect, which a wall clock would show as a
    run that hangs."""


class Future(Generic[T]):
    """A result that is still to come; any number of coroutines may wait for it."""

    __slots__ = ("_clock", "_error", "_result", "_waiters", "done")

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._waiters: list[Task[Any]] = []
        self._error: BaseException | None = None
        self._result: Any = None
        self.done = False

    def set(self, result: T) -> None:
        """Whoever waits goes on, in the order of their waiting."""
        self._result = result
        self._settle()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._settle()

    def _settle(self) -> None:
        self.done = True
        for task in self._waiters:
            task.waits_for = None
        self._clock.ready.extend(self._waiters)
        self._waiters = []

    def add(self, task: Task[Any]) -> None:
        self._waiters.append(task)

    def remove(self, task: Task[Any]) -> None:
        self._waiters.remove(task)

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done:
            yield self
        return self.result()

    def result(self) -> T:
        """Of what is done; raises the error that it ended in."""
        if self._error is not None:
            raise self._error
        return self._result


class Task(Future[T]):
    """A coroutine that runs beside others; awaiting it gives its result, or raises its error."""

    __slots__ = ("_stopping", "coroutine", "due", "name", "waits_for")

    def __init__(self, clock: VirtualClock, coroutine: Coroutine[Any, Any, T], name: str) -> None:
        super().__init__(clock)
        self.coroutine = coroutine
        self.name = name
        self.due = -1
        """The number of the sleep that it is in; an older entry of the heap is void."""
        self.waits_for: Future[Any] | None = None
        self._stopping: BaseException | None = None

    def cancel(self, error: BaseException | None = None) -> None:
        """Raise `error` (Cancelled) where it waits, at this moment. Nothing once it has ended, nor
        while an earlier one is still to be raised."""
        if self.done or self._stopping is not None:
            return
        self._stopping = error or Cancelled()
        if self.waits_for is not None:
            self.waits_for.remove(self)
            self.waits_for = None
            self._clock.ready.append(self)
        elif self.due >= 0:
            self.due = -1
            self._clock.ready.append(self)

    def run(self) -> None:
        """Go on until it waits or ends."""
        clock = self._clock
        clock.current = self
        try:
            if self._stopping is None:
                waited = self.coroutine.send(None)
            else:
                error, self._stopping = self._stopping, None
                waited = self.coroutine.throw(error)
        except StopIteration as end:
            clock.ended(self)
            self.set(end.value)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # whoever awaits it gets it, a cancellation too
            clock.ended(self)
            self.fail(error)
        else:
            if waited.__class__ is float:
                clock.sleep_until(self, clock.time_s + waited)
            else:
                self.waits_for = waited
                waited.add(self)


class Timer:
    """A function to be called at a time, instead of a coroutine; cheaper, and may not wait."""

    __slots__ = ("_call", "due")

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.due = -1

    def cancel(self) -> None:
        self.due = -1
        self._call = _nothing  # where its moment has come already

    def run(self) -> None:
        self._call()


def _nothing() -> None:
    """What a cancelled timer does."""


class Queue(Generic[T]):
    """Unbounded, first in, first out."""

    __slots__ = ("_arrival", "_clock", "_items")

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._items: deque[T] = deque()
        self._arrival: Future[None] | None = None

    def put_nowait(self, item: T) -> None:
        self._items.append(item)
        if self._arrival is not None:
            arrival, self._arrival = self._arrival, None
            arrival.set(None)

    def get_nowait(self) -> T:
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items

    async def get(self) -> T:
        while not self._items:
            if self._arrival is None:
                self._arrival = Future(self._clock)
            await self._arrival
        return self._items.popleft()


class Semaphore:
    """At most `value` inside at once; who came first goes first."""

    __slots__ = ("_clock", "_free", "_waiting")

    def __init__(self, clock: VirtualClock, value: int) -> None:
        self._clock = clock
        self._free = value
        self._waiting: deque[Future[None]] = deque()

    async def acquire(self) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn: Future[None] = Future(self._clock)
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done:  # it was given the place at the moment of its cancellation
                self.release()
            else:
                self._waiting.remove(turn)
            raise

    def release(self) -> None:
        """Hand the place over to who waits longest."""
        if self._waiting:
            self._waiting.popleft().set(None)
        else:
            self._free += 1

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *unused: object) -> None:
        self.release()


class _TimedOut(Cancelled):
    """The cancellation that a timeout makes."""


class _Timeout:
    """Raises TimeoutError out of its block once the seconds have gone by."""

    __slots__ = ("_clock", "_error", "_seconds", "_timer")

    def __init__(self, clock: VirtualClock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._error = _TimedOut()

    async def __aenter__(self) -> None:
        task = self._clock.current
        self._timer = self._clock.call_at(
            self._clock.time_s + self._seconds, lambda: task.cancel(self._error)
        )

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        if error is self._error:
            raise TimeoutError from error


@types.coroutine
def _sleep(seconds: float) -> Generator[float, None, None]:
    yield seconds


@types.coroutine
def _end_of(task: Task[Any]) -> Generator[Task[Any], None, None]:
    """Wait until it has ended, however it did."""
    if not task.done:
        yield task


class VirtualClock:
    """Seconds that pass only when nothing else can happen. `run` drives one coroutine to its end;
    the rest of the methods are for what runs inside."""

    kind: Literal["wall", "virtual"] = "virtual"

    def __init__(self) -> None:
        self.origin_s = 0.0
        self.time_s = 0.0
        self.events = 0
        """Moments of the heap that have been handled: sleeps and timers."""
        self.ready: deque[Any] = deque()
        self.current: Task[Any]
        self._heap: list[tuple[float, int, Any]] = []
        self._number = 0
        self._running: dict[Task[Any], None] = {}
        self._stop: BaseException | None = None

    # -- for what runs inside ----------------------------------------------------------------------

    def now(self) -> float:
        return self.time_s

    def resume(self, now_s: float) -> None:
        """A run goes on that has come to `now_s`; nothing has been asked for yet."""
        self.time_s = now_s

    def sleep(self, seconds: float) -> Awaitable[None]:
        return _sleep(float(seconds))

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> Task[T]:
        task = Task(self, coroutine, name)
        self._running[task] = None
        self.ready.append(task)
        return task

    async def cancel_all(self) -> None:
        """Cancel what was spawned and still runs, and wait until each has cleaned up."""
        while self._running:
            running = list(self._running)
            for task in running:
                task.cancel()
            for task in running:
                await _end_of(task)

    def queue(self) -> Queue[Any]:
        return Queue(self)

    def semaphore(self, value: int) -> Semaphore:
        return Semaphore(self, value)

    def timeout(self, seconds: float) -> _Timeout:
        return _Timeout(self, seconds)

    def call_at(self, time_s: float, call: Callable[[], None]) -> Timer:
        """Call a function at a time, unless it is cancelled before."""
        timer = Timer(call)
        self.sleep_until(timer, time_s)
        return timer

    # -- the machinery -----------------------------------------------------------------------------

    def sleep_until(self, sleeper: Task[Any] | Timer, time_s: float) -> None:
        """Run the sleeper at that time; after all that is ready where that is now or has been."""
        if time_s > self.time_s:
            self._number = number = self._number + 1
            sleeper.due = number
            heappush(self._heap, (time_s, number, sleeper))
        else:
            self.ready.append(sleeper)

    def ended(self, task: Task[Any]) -> None:
        self._running.pop(task, None)

    def interrupt(self, error: BaseException) -> None:
        """Raise `error` in the main coroutine, where it waits, before time goes on. May be called
        from a signal handler."""
        self._stop = error

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Drive `main` and all that it spawns until `main` has ended, then cancel what is left.
        Raises what `main` raises, and Deadlock (in `main`, so that its clean-up runs) where nothing
        is left to happen."""
        task = Task(self, main, "main")
        try:
            self._drive(task)
        finally:
            self._drive(Task(self, self.cancel_all(), "clean-up"))
        return task.result()

    def _drive(self, task: Task[Any]) -> None:
        ready = self.ready
        ready.append(task)
        stuck = False
        while True:
            while ready:
                ready.popleft().run()
            if task.done:
                return
            if self._stop is not None:
                error, self._stop = self._stop, None
                task.cancel(error)
            elif not self._advance():
                if stuck:
                    raise self._deadlock()
                stuck = True
                task.cancel(self._deadlock())

    def _advance(self) -> bool:
        """On to the next moment at which something happens; False where there is none."""
        heap, ready = self._heap, self.ready
        while heap:
            time_s, number, sleeper = heappop(heap)
            if sleeper.due == number:
                self.time_s = time_s
                sleeper.due = -1
                ready.append(sleeper)
                while heap and heap[0][0] == time_s:
                    _, number, sleeper = heappop(heap)
                    if sleeper.due == number:
                        sleeper.due = -1
                        ready.append(sleeper)
                self.events += len(ready)
                return True
        return False

    def _deadlock(self) -> Deadlock:
        names = [task.name for task in self._running]
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        return Deadlock(
            f"virtual time stands still at {self.time_s:g} s: nothing is left to happen and "
            f"{shown or 'the run'} still waits"
        )
