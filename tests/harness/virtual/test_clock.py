"""Virtual time: the order of things, cancellation, failures, and time that stands still."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from harness.clock import WallClock
from harness.interrupt import Interrupted
from harness.virtual import Cancelled, Deadlock, Future, VirtualClock


def run(main: Any) -> tuple[VirtualClock, Any]:
    """`main(clock)` in virtual time."""
    clock = VirtualClock()
    return clock, clock.run(main(clock))


def test_a_thousand_years_take_no_time() -> None:
    async def main(clock: VirtualClock) -> float:
        await clock.sleep(1000 * 365 * 86400)
        return clock.now()

    assert run(main)[1] == 1000 * 365 * 86400


def test_what_happens_at_one_moment_happens_in_the_order_of_asking() -> None:
    said: list[str] = []

    async def main(clock: VirtualClock) -> None:
        async def say(name: str, after_s: float) -> None:
            await clock.sleep(after_s)
            said.append(name)

        spoken = [clock.spawn(say(n, s), n) for n, s in (("c", 3), ("a", 2), ("b", 2), ("z", 0))]
        for one in spoken:
            await one

    run(main)
    assert said == ["z", "a", "b", "c"]


def test_a_result_and_an_error_reach_whoever_awaits_them() -> None:
    async def main(clock: VirtualClock) -> list[Any]:
        async def work(value: Any) -> Any:
            await clock.sleep(1)
            if isinstance(value, Exception):
                raise value
            return value

        good, bad = clock.spawn(work(7), "good"), clock.spawn(work(KeyError("x")), "bad")
        found: list[Any] = [await good, await good]
        with pytest.raises(KeyError):
            await bad
        return found

    assert run(main)[1] == [7, 7]


def test_a_queue_and_a_semaphore_keep_their_order() -> None:
    clock, got = VirtualClock(), []
    inside = most = 0

    async def main() -> None:
        nonlocal inside, most
        queue, two = clock.queue(), clock.semaphore(2)

        async def put(n: int) -> None:
            nonlocal inside, most
            async with two:
                inside += 1
                most = max(most, inside)
                await clock.sleep(1)
                inside -= 1
                queue.put_nowait((n, clock.now()))

        for n in range(5):
            clock.spawn(put(n), f"put-{n}")
        got.extend([await queue.get() for _ in range(5)])
        assert queue.empty()

    clock.run(main())
    assert most == 2
    assert got == [(0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0), (4, 3.0)]


@pytest.mark.parametrize("given", [False, True])
def test_who_is_cancelled_in_a_queue_for_a_semaphore_leaves_its_place(given: bool) -> None:
    """Also at the very moment at which it is given the place."""

    async def main(clock: VirtualClock) -> float:
        one = clock.semaphore(1)

        async def hold(seconds: float) -> None:
            async with one:
                await clock.sleep(seconds)

        first = clock.spawn(hold(5), "first")
        second = clock.spawn(hold(100), "second")
        third = clock.spawn(hold(1), "third")
        await clock.sleep(1)
        if given:
            await first
        second.cancel()
        await third
        return clock.now()

    assert run(main)[1] == 6.0


def test_cancellation_runs_the_clean_up_which_may_take_time() -> None:
    done: list[tuple[str, float]] = []

    async def main(clock: VirtualClock) -> None:
        async def life(name: str) -> None:
            try:
                await clock.sleep(100)
            finally:
                await clock.sleep(2)
                done.append((name, clock.now()))

        async def child_of() -> None:
            await clock.spawn(life("child"), "child")

        clock.spawn(life("a"), "a")
        parent = clock.spawn(child_of(), "parent")
        await clock.sleep(1)
        await clock.cancel_all()
        with pytest.raises(Cancelled):
            await parent

    clock, _ = run(main)
    assert done == [("a", 3.0), ("child", 3.0)]
    assert clock.now() == 3.0  # the sleeps of 100 s are void


def test_what_is_left_when_the_main_coroutine_ends_is_cancelled() -> None:
    closed: list[float] = []

    async def main(clock: VirtualClock) -> str:
        async def for_ever() -> None:
            try:
                while True:
                    await clock.sleep(10)
            finally:
                closed.append(clock.now())

        clock.spawn(for_ever(), "for ever")
        await clock.sleep(25)
        return "done"

    assert run(main)[1] == "done"
    assert closed == [25.0]


def test_a_timeout_ends_its_block_alone() -> None:
    async def main(clock: VirtualClock) -> list[float]:
        times = []
        with pytest.raises(TimeoutError):
            async with clock.timeout(3):
                await clock.sleep(10)
        times.append(clock.now())
        async with clock.timeout(3):
            await clock.sleep(1)
        await clock.sleep(10)  # the timeout that was left does not ring
        times.append(clock.now())
        return times

    assert run(main)[1] == [3.0, 14.0]


def test_nothing_left_to_happen_is_an_error_that_names_who_waits() -> None:
    cleaned: list[str] = []

    async def main(clock: VirtualClock) -> None:
        stuck: Future[None] = Future(clock)

        async def wait() -> None:
            await stuck

        await clock.sleep(4)
        try:
            await clock.spawn(wait(), "trajectory-3-1")
        finally:
            cleaned.append("main")

    with pytest.raises(Deadlock, match=r"stands still at 4 s.*trajectory-3-1 still waits"):
        run(main)
    assert cleaned == ["main"]


def test_a_signal_is_raised_where_the_run_waits() -> None:
    async def main(clock: VirtualClock) -> None:
        clock.interrupt(Interrupted(15))
        with contextlib.suppress(Exception):
            await clock.sleep(10)

    with pytest.raises(Interrupted):
        run(main)


def test_both_clocks_run_the_same_code_to_the_same_end() -> None:
    """Real milliseconds on one, virtual ones on the other."""

    async def main(clock: Any) -> list[Any]:
        said: list[Any] = []
        queue, one = clock.queue(), clock.semaphore(1)

        async def work(n: int) -> int:
            async with one:
                await clock.sleep(0.02)
                queue.put_nowait(n)
            return n * n

        running = [clock.spawn(work(n), str(n)) for n in range(3)]
        said += [await queue.get() for _ in range(3)]
        said += [await one for one in running]
        try:
            async with clock.timeout(0.01):
                await clock.sleep(60)
        except TimeoutError:
            said.append("late")
        await clock.cancel_all()
        return said

    virtual = VirtualClock()
    expected = [0, 1, 2, 0, 1, 4, "late"]
    assert virtual.run(main(virtual)) == expected
    assert virtual.now() == pytest.approx(0.07)

    async def on_the_wall() -> list[Any]:
        return await main(WallClock())

    assert asyncio.run(on_the_wall()) == expected
