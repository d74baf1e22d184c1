"""Sandboxes made ahead: fresh, one life each, within the limits, and all accounted for."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from dataclasses import replace

import pytest

from environments.protocols import InfrastructureError
from environments.sandbox.bubblewrap import BubblewrapProvider
from environments.sandbox.options import ProviderOptions
from environments.sandbox.pool import WarmPool, kind_of


async def until(condition, within_s=60.0):
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


def warm(number, **options):
    return ProviderOptions(warm=number, **options)


def test_a_repeated_kind_is_served_warm_and_never_twice(backend, spec):
    async def scenario():
        async with backend.provider(options=warm(2)) as pool:
            assert isinstance(pool, WarmPool)
            pool.expect(spec)
            seen = set()
            for number in range(6):
                await until(lambda: pool.idle == 2)
                sandbox = await pool.start(spec)
                assert sandbox.sandbox_id not in seen
                seen.add(sandbox.sandbox_id)
                fresh = await sandbox.exec("ls -A . /tmp; ps 2>/dev/null | wc -l", timeout_s=20)
                assert ".mark" not in fresh.output
                await sandbox.exec(f"touch .mark /tmp/.mark; echo {number}", timeout_s=20)
                await sandbox.stop()
            assert (pool.counters.warm, pool.misses) == (6, 0)
            await until(lambda: pool.idle == 2)
            assert pool.counters.created == 8 and pool.counters.removed == 6

    asyncio.run(scenario())


def test_another_kind_is_made_for_itself(backend, spec, tmp_path):
    (tmp_path / "x").write_text("inside")
    tmp_path.chmod(0o755)
    other = replace(spec, read_only_binds={str(tmp_path): "/opt/x"}, environment={"A": "b"})
    same = replace(other, environment={"A": "b"}, read_only_binds={str(tmp_path): "/opt/x"})
    assert kind_of(other) == kind_of(same) != kind_of(spec)
    assert kind_of(replace(spec, memory_mb=999)) != kind_of(spec)
    assert kind_of(replace(other, environment={"A": "c"})) != kind_of(other)

    async def scenario():
        async with backend.provider(options=warm(1)) as pool:
            pool.expect(spec)
            await until(lambda: pool.idle == 1)
            sandbox = await pool.start(other)
            result = await sandbox.exec("cat /opt/x/x; echo $A", timeout_s=20)
            assert result.output == "insideb\n"
            assert (pool.counters.warm, pool.misses) == (0, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_warm_ones_count_and_give_way(backend, spec, seed):
    """Random lives of three kinds with as few slots as there can be: none waits for ever, and
    never are more alive than there are slots."""
    draw = random.Random(seed)
    kinds = [replace(spec, memory_mb=200 + number) for number in range(3)]

    async def life(pool, kind, pause_s):
        sandbox = await pool.start(kind)
        assert pool.counters.created - pool.counters.removed <= 3
        await asyncio.sleep(pause_s)
        assert (await sandbox.exec("echo on", timeout_s=30)).output == "on\n"
        await sandbox.stop()

    async def scenario():
        async with backend.provider(max_parallel=3, options=warm(2)) as pool:
            async with asyncio.timeout(90):
                lives = [life(pool, draw.choice(kinds), draw.random() * 0.1) for _ in range(20)]
                await asyncio.gather(*lives)
            assert pool.counters.warm + pool.misses == 20

    asyncio.run(scenario())


def test_idle_ones_of_another_kind_make_room(backend, spec):
    other = replace(spec, memory_mb=201)

    async def scenario():
        async with backend.provider(max_parallel=2, options=warm(2)) as pool:
            pool.expect(spec)
            await until(lambda: pool.idle == 2)
            async with asyncio.timeout(30):
                both = await asyncio.gather(pool.start(other), pool.start(other))
            assert pool.idle == 0 and pool.counters.created - pool.counters.removed == 2
            for sandbox in both:
                assert (await sandbox.exec("echo on", timeout_s=20)).output == "on\n"

    asyncio.run(scenario())


def test_first_come_first_served_across_kinds(backend, spec):
    async def scenario():
        async with backend.provider(max_parallel=1, options=warm(1)) as pool:
            order = []

            async def life(name, kind):
                sandbox = await pool.start(kind)
                order.append(name)
                await sandbox.stop()

            held = await pool.start(spec)
            names = "abcd"
            waiting = []
            for number, name in enumerate(names):
                kind = replace(spec, memory_mb=200 + number % 2)
                waiting.append(asyncio.create_task(life(name, kind)))
                await asyncio.sleep(0.01)
            await held.stop()
            await asyncio.gather(*waiting)
            assert "".join(order) == names

    asyncio.run(scenario())


def test_unused_ones_end_with_their_time(backend, spec):
    async def scenario():
        async with backend.provider(options=warm(2, time_to_live_s=1.0)) as pool:
            pool.expect(spec)
            await until(lambda: pool.idle == 2)
            await until(lambda: pool.counters.removed == pool.counters.created >= 2)
            assert pool.idle == 0
            await asyncio.sleep(0.2)
            assert pool.counters.created == pool.counters.removed  # nobody asks: nothing new
            sandbox = await pool.start(spec)
            await sandbox.stop()

    asyncio.run(scenario())


def test_one_that_died_waiting_is_not_handed_out(backend, spec):
    async def scenario():
        async with backend.provider(options=warm(1)) as pool:
            pool.expect(spec)
            await until(lambda: pool.idle == 1)
            (dead,) = list(pool.provider._living)
            if isinstance(pool.provider, BubblewrapProvider):
                os.kill(dead.pid, signal.SIGKILL)
            else:
                await asyncio.to_thread(pool.provider.client.api.kill, dead.sandbox_id)
            await asyncio.sleep(0.3)
            sandbox = await pool.start(spec)
            assert sandbox.sandbox_id != dead.sandbox_id
            assert (await sandbox.exec("echo on", timeout_s=20)).output == "on\n"

    asyncio.run(scenario())


def test_a_cancelled_start_gives_its_sandbox_to_the_next(backend, spec):
    async def scenario():
        async with backend.provider(options=warm(1)) as pool:
            pool.expect(spec)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            adopted = asyncio.create_task(pool.start(spec))
            await asyncio.sleep(0.01)
            adopted.cancel()
            await asyncio.gather(adopted, return_exceptions=True)
            counters = pool.counters
            await until(lambda: pool.idle == counters.created - counters.removed > 0)
            sandbox = await pool.start(spec)
            assert (await sandbox.exec("echo on", timeout_s=20)).output == "on\n"

    asyncio.run(scenario())


def test_close_in_the_middle_of_everything(backend, spec):
    async def scenario():
        pool = await backend.open(max_parallel=4, options=warm(3))
        starts = [asyncio.create_task(pool.start(spec)) for _ in range(6)]
        await asyncio.sleep(0.1)
        await pool.close()
        for outcome in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, InfrastructureError), outcome
        assert pool.counters.created == pool.counters.removed
        assert pool.counters.leaked == 0
        with pytest.raises(InfrastructureError, match="closed"):
            await pool.start(spec)

    asyncio.run(scenario())


def test_a_kind_that_cannot_start_is_not_tried_without_end(backend, spec):
    broken = replace(spec, image="thundersync/none:0", read_only_binds={"/does/not/exist": "/x"})

    async def scenario():
        async with backend.provider(options=warm(2)) as pool:
            with pytest.raises(InfrastructureError, match=r"exist|none:0"):
                await pool.start(broken)
            await asyncio.sleep(1.0)
            assert pool.counters.created <= 4  # then it rests
            assert await pool.start(spec)

    asyncio.run(scenario())


def test_exec_has_a_limit_of_its_own(backend, spec):
    async def scenario():
        async with backend.provider(options=ProviderOptions(exec_parallel=1)) as provider:
            two = [await provider.start(spec) for _ in range(2)]
            began_s = time.monotonic()
            await asyncio.gather(*(s.exec("sleep 0.4", timeout_s=20) for s in two))
            assert time.monotonic() - began_s >= 0.8

    asyncio.run(scenario())


def test_starts_have_a_limit_of_their_own(backend, spec):
    async def scenario():
        async with backend.provider(options=ProviderOptions(start_parallel=1)) as provider:
            most = 0
            launch = provider._launch

            async def counted(sandbox):
                nonlocal most
                most = max(most, len(provider._holding) - len(started))
                await launch(sandbox)

            started = []
            provider._launch = counted

            async def start():
                started.append(await provider.start(spec))

            await asyncio.gather(*(start() for _ in range(4)))
            assert most == 1

    asyncio.run(scenario())


def test_a_batch_that_takes_its_sandboxes_is_not_disturbed(backend, spec, monkeypatch):
    """The next ones are made once it has them, or after a while if starts never end."""
    monkeypatch.setattr("environments.sandbox.pool._CALM_S", 4.0)
    monkeypatch.setattr("environments.sandbox.pool._CALM_LIMIT_S", 6.0)

    async def scenario():
        async with backend.provider(max_parallel=12, options=warm(3)) as pool:
            pool.expect(spec)
            await until(lambda: pool.idle == 3)
            began_s = time.monotonic()
            await asyncio.gather(*(pool.start(spec) for _ in range(3)))
            assert pool.counters.created == 3
            while time.monotonic() < began_s + 3.5:
                assert pool.counters.created == 3
                await asyncio.sleep(0.05)
            made = await pool.start(spec)  # again within the burst: its own, at once
            assert pool.misses == 1
            await made.stop()
            await until(lambda: pool.idle == 3)

    asyncio.run(scenario())


def test_one_that_hangs_is_not_waited_for(backend, spec, monkeypatch):
    monkeypatch.setattr("environments.sandbox.pool._CHECK_LIMIT_S", 0.3)

    async def hangs():
        await asyncio.sleep(1000)
        return True

    async def scenario():
        async with backend.provider(options=warm(1)) as pool:
            pool.expect(spec)
            await until(lambda: pool.idle == 1)
            (silent,) = list(pool.provider._living)
            silent.answers = hangs
            sandbox = await pool.start(spec)
            assert sandbox is not silent
            assert (await sandbox.exec("echo on", timeout_s=20)).output == "on\n"
            await until(lambda: silent not in pool.provider._living)

    asyncio.run(scenario())
