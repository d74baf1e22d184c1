"""Slots over several places: spread by what is free, in turn, and none lost."""

from __future__ import annotations

import asyncio

import pytest

from environments.sandbox.backoff import TemporaryError
from environments.sandbox.places import Place, Places


def names(places):
    return [place.name for place in places]


def test_the_emptiest_place_is_taken():
    async def scenario():
        places = Places([Place("a", 2), Place("b", 4)], 5)
        taken = [await places.acquire() for _ in range(5)]
        assert names(taken) == ["b", "b", "a", "b", "a"]
        assert places.free == 0  # by the limit for all; b has one more
        places.release(taken[0])
        assert places.free == 1
        assert (await places.acquire()).name == "b"

    asyncio.run(scenario())


def test_waiting_is_in_turn_and_survives_cancellation():
    async def scenario():
        places = Places([Place("a", 1)], 1)
        held = await places.acquire()
        order = []

        async def take(number):
            place = await places.acquire()
            order.append(number)
            places.release(place)

        tasks = [asyncio.create_task(take(number)) for number in range(4)]
        await asyncio.sleep(0)
        assert (places.waiting, places.free) == (4, 0)
        tasks[1].cancel()
        places.release(held)
        tasks[0].cancel()  # together with its slot, which must go on to the next
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [2, 3]
        assert (places.waiting, places.free) == (0, 1)

    asyncio.run(scenario())


def test_a_closed_place_takes_nothing_and_keeps_its_count():
    async def scenario():
        a, b = Place("a", 2), Place("b", 2)
        places = Places([a, b], 4)
        assert names([await places.acquire(), await places.acquire()]) == ["a", "b"]
        places.set_open(b, False)
        assert (await places.acquire()) is a
        waiting = asyncio.create_task(places.acquire())
        await asyncio.sleep(0)
        assert not waiting.done() and places.free == 0
        places.release(b)  # removed after all; still it takes nothing
        await asyncio.sleep(0)
        assert not waiting.done()
        places.set_open(b, True)
        assert (await waiting) is b
        assert (a.used, b.used) == (2, 1)

    asyncio.run(scenario())


def test_no_open_place_is_said_at_once_to_all():
    async def scenario():
        only = Place("a", 1)
        places = Places([only], 1)
        await places.acquire()
        waiting = asyncio.create_task(places.acquire())
        await asyncio.sleep(0)
        places.set_open(only, False)
        with pytest.raises(TemporaryError, match=r"no engine answers \(a\)"):
            await waiting
        with pytest.raises(TemporaryError, match=r"no engine answers \(a\)"):
            await places.acquire()

    asyncio.run(scenario())
