"""Several engines, one of which is lost: against a real second engine that the test kills."""

from __future__ import annotations

import asyncio
import signal

import pytest

from environments.protocols import InfrastructureError, UsageError
from environments.sandbox.engine import DEFAULT_ADDRESS
from environments.sandbox.images import MINI_IMAGE
from environments.sandbox.options import ProviderOptions
from environments.sandbox.select import open_provider

pytestmark = [pytest.mark.docker, pytest.mark.slow]


def open_two(own_engine, **options):
    hosts = (DEFAULT_ADDRESS, own_engine.address)
    return open_provider(
        "docker",
        image=MINI_IMAGE,
        run_id="two-engines",
        max_parallel=8,
        options=ProviderOptions(hosts=hosts, host_parallel=(2, 2), **options),
    )


async def until(condition, within_s=30.0):
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.05)


def addresses(sandboxes):
    return sorted(sandbox.engine.address for sandbox in sandboxes)


def test_a_lost_engine_is_left_out_until_it_answers_again(own_engine, spec):
    async def scenario():
        provider = await open_two(own_engine)
        try:
            four = await asyncio.gather(*(provider.start(spec) for _ in range(4)))
            assert addresses(four) == sorted([DEFAULT_ADDRESS, own_engine.address] * 2)
            fifth = asyncio.create_task(provider.start(spec))
            await asyncio.sleep(0.3)
            assert not fifth.done()  # both are at their limit, though max_parallel is not

            lost = [s for s in four if s.engine.address == own_engine.address]
            kept = [s for s in four if s.engine.address != own_engine.address]
            running = [asyncio.create_task(s.exec("sleep 100", timeout_s=200)) for s in lost]
            await asyncio.sleep(0.3)
            await asyncio.to_thread(own_engine.end, signal.SIGKILL)
            for command in running:
                with pytest.raises(InfrastructureError, match="exec_transport"):
                    await command
            for sandbox in lost:
                with pytest.raises(InfrastructureError):
                    await sandbox.stop()
            assert provider.counters.engine_losses == 1

            for sandbox in kept:
                assert (await sandbox.exec("echo on", timeout_s=20)).output == "on\n"
            await asyncio.sleep(0.3)
            assert not fifth.done()  # the slots of the lost engine are nobody's
            await kept[0].stop()
            assert (await fifth).engine.address == DEFAULT_ADDRESS
            await (await fifth).stop()

            await asyncio.to_thread(own_engine.start)
            await until(lambda: all(place.open for place in provider.places.all))
            await until(lambda: provider.counters.removed == 4)  # the lost ones, too
            again = await asyncio.gather(*(provider.start(spec) for _ in range(3)))
            assert addresses(again).count(own_engine.address) == 2
        finally:
            await provider.close()
        assert provider.counters.created == provider.counters.removed == 8
        assert provider.counters.leaked == 0

    asyncio.run(scenario())
    counts = own_engine.counts_after_kill()
    assert counts == dict.fromkeys(counts, 0)


def test_warm_ones_of_a_lost_engine_are_not_handed_out(own_engine, spec):
    async def scenario():
        pool = await open_two(own_engine, warm=4)
        try:
            pool.expect(spec)
            await until(lambda: pool.idle == 4)
            await asyncio.to_thread(own_engine.end, signal.SIGKILL)
            two = [await pool.start(spec) for _ in range(2)]
            for sandbox in two:
                assert sandbox.engine.address == DEFAULT_ADDRESS
                assert (await sandbox.exec("echo on", timeout_s=20)).output == "on\n"
            await asyncio.to_thread(own_engine.start)
        finally:
            await pool.close()
        assert pool.counters.created == pool.counters.removed
        assert pool.counters.leaked == 0

    asyncio.run(scenario())
    assert own_engine.counts()["containers"] == 0


def test_all_engines_gone_is_one_clear_line_after_bounded_tries(own_engine, spec, monkeypatch):
    monkeypatch.setattr("environments.sandbox.backoff.TRIES", 3)

    async def scenario():
        provider = await open_provider(
            "docker",
            image=MINI_IMAGE,
            run_id="no-engine",
            max_parallel=2,
            options=ProviderOptions(hosts=(own_engine.address,)),
        )
        await asyncio.to_thread(own_engine.end, signal.SIGTERM)
        with pytest.raises(InfrastructureError, match=r"start: 3 tries in \d+ s.*no engine answ"):
            await provider.start(spec)
        await provider.close()
        assert provider.counters.leaked == provider.counters.created - provider.counters.removed

    asyncio.run(scenario())


def test_a_host_that_does_not_answer_is_named_at_start(own_engine):
    hosts = (own_engine.address, "tcp://127.0.0.1:9")
    opening = open_provider(
        "auto",
        image=MINI_IMAGE,
        run_id="x",
        max_parallel=1,
        options=ProviderOptions(hosts=hosts),
    )
    with pytest.raises(UsageError, match=r"no Docker engine answers at tcp://127\.0\.0\.1:9"):
        asyncio.run(opening)
