"""Every sandbox that was begun is removed and counted, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from environments.protocols import InfrastructureError
from environments.sandbox.bubblewrap import BubblewrapProvider
from environments.sandbox.cgroups import find_groups
from environments.sandbox.docker import DockerProvider

_HARNESS = """
import asyncio, sys
from environments.protocols import SandboxSpec
from environments.sandbox.select import open_provider

async def main():
    provider = await open_provider(
        sys.argv[1], image="thundersync/mini:1", run_id=sys.argv[2], max_parallel=2
    )
    sandbox = await provider.start(SandboxSpec(image="thundersync/mini:1"))
    await sandbox.exec(f"setsid bash -c 'sleep 1000; : {sys.argv[2]}' & echo", timeout_s=20)
    print("ready", flush=True)
    await sandbox.exec(f"sleep 1000; : {sys.argv[2]}", timeout_s=1000)

asyncio.run(main())
"""


def processes_with(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


async def wait_until_gone(marker: str, within_s: float = 10.0) -> None:
    give_up = time.monotonic() + within_s
    while processes_with(marker):
        assert time.monotonic() < give_up, processes_with(marker)
        await asyncio.sleep(0.05)


def traces(provider) -> int:
    """What of a provider's sandboxes still exists on this machine."""
    if isinstance(provider, DockerProvider):
        listed = provider.client.api.containers(
            all=True, filters={"label": f"thundersync.run={provider.run_id}"}
        )
        return len(listed)
    groups = provider.groups
    directories = groups.left() if groups is not None else []
    return len(directories) + len(processes_with(str(provider.files)))


def test_stop_is_idempotent_and_final(backend, spec):
    async def scenario():
        async with backend.provider() as provider:
            sandbox = await provider.start(spec)
            await sandbox.exec("setsid sleep 1000 & echo", timeout_s=20)
            await asyncio.gather(sandbox.stop(), sandbox.stop())
            await sandbox.stop()
            assert (provider.counters.created, provider.counters.removed) == (1, 1)
            assert traces(provider) == 0
            with pytest.raises(InfrastructureError, match="stopped"):
                await sandbox.exec("echo", timeout_s=20)
            with pytest.raises(InfrastructureError):
                await sandbox.put({"a": b""})

    asyncio.run(scenario())


def test_close_removes_what_is_left(backend, spec):
    async def scenario():
        provider = await backend.open(run_id=f"close-{os.getpid()}")
        first = await provider.start(spec)
        await provider.start(spec)
        running = asyncio.create_task(first.exec("sleep 1000", timeout_s=2000))
        await asyncio.sleep(0.2)
        await provider.close()
        with pytest.raises(InfrastructureError, match="stopped"):
            await running
        counters = provider.counters
        assert (counters.created, counters.removed, counters.leaked) == (2, 2, 0)
        with pytest.raises(InfrastructureError, match="closed"):
            await provider.start(spec)

    asyncio.run(scenario())


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.01, 0.03, 0.1, 0.25])
def test_cancelled_start_leaves_nothing(backend, spec, delay_s):
    async def scenario():
        provider = await backend.open(run_id=f"cancel-{os.getpid()}-{delay_s}")
        start = asyncio.create_task(provider.start(spec))
        await asyncio.sleep(delay_s)
        start.cancel()
        outcome = (await asyncio.gather(start, return_exceptions=True))[0]
        if isinstance(outcome, asyncio.CancelledError):
            assert traces(provider) == 0
        else:
            await outcome.stop()
        await wait_until_gone(provider.run_id)
        counters = provider.counters
        assert counters.created == counters.removed <= 1
        again = await provider.start(spec)
        assert (await again.exec("echo ok", timeout_s=20)).output == "ok\n"
        await provider.close()
        assert counters.created == counters.removed and counters.leaked == 0

    asyncio.run(scenario())


def test_exception_in_the_caller_leaves_nothing(backend, spec):
    async def scenario():
        with pytest.raises(RuntimeError, match="caller"):
            async with backend.provider() as provider:
                await provider.start(spec)
                raise RuntimeError("caller")
        assert provider.counters.removed == 1

    asyncio.run(scenario())


def test_sixteen_in_parallel(backend, spec):
    async def life(provider, number):
        sandbox = await provider.start(spec)
        try:
            result = await sandbox.exec(f"echo {number} > f; sleep 0.2; cat f", timeout_s=60)
            return result.output
        finally:
            await sandbox.stop()

    async def scenario():
        async with backend.provider() as provider:
            outputs = await asyncio.gather(*(life(provider, number) for number in range(16)))
            assert outputs == [f"{number}\n" for number in range(16)]
            assert (provider.counters.created, provider.counters.removed) == (16, 16)
            assert traces(provider) == 0

    asyncio.run(scenario())


def test_start_waits_for_a_slot(backend, spec):
    async def scenario():
        async with backend.provider(max_parallel=1) as provider:
            first = await provider.start(spec)
            waiting = asyncio.create_task(provider.start(spec))
            await asyncio.sleep(0.2)
            assert not waiting.done() and provider.counters.created == 1
            await first.stop()
            second = await waiting
            assert (await second.exec("echo ok", timeout_s=20)).output == "ok\n"
            cancelled = asyncio.create_task(provider.start(spec))
            await asyncio.sleep(0.05)
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
            await second.stop()
            assert provider.counters.created == 2
            await (await provider.start(spec)).stop()

    asyncio.run(scenario())


def test_sandbox_ended_from_outside_is_no_fault_of_the_agent(backend, spec):
    async def scenario():
        async with backend.provider() as provider:
            sandbox = await provider.start(spec)
            running = asyncio.create_task(sandbox.exec("sleep 1000", timeout_s=2000))
            await asyncio.sleep(0.2)
            if isinstance(provider, BubblewrapProvider):
                os.kill(sandbox.pid, signal.SIGKILL)
            else:
                await asyncio.to_thread(provider.client.api.kill, sandbox.sandbox_id)
            with pytest.raises(InfrastructureError, match="exec_transport"):
                await running
            with pytest.raises(InfrastructureError, match="exec_transport"):
                await sandbox.exec("echo", timeout_s=20)

    asyncio.run(scenario())


def test_failed_start_is_named_and_counted(backend, spec):
    from dataclasses import replace

    async def scenario():
        async with backend.provider() as provider:
            broken = replace(
                spec, image="thundersync/none:0", read_only_binds={"/does/not/exist": "/x"}
            )
            with pytest.raises(InfrastructureError, match=r"exist|none:0"):
                await provider.start(broken)
            await (await provider.start(spec)).stop()

    asyncio.run(scenario())


def test_killed_harness_leaves_nothing_for_long(backend):
    run_id = f"killed-{os.getpid()}-{time.monotonic_ns()}"
    with subprocess.Popen(
        [sys.executable, "-c", _HARNESS, backend.kind, run_id], stdout=subprocess.PIPE
    ) as harness:
        assert harness.stdout is not None
        assert harness.stdout.readline() == b"ready\n"
        # A process has no command line for a moment while it executes another program.
        give_up = time.monotonic() + 10.0
        while len(processes_with(run_id)) < 2:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        harness.kill()

    async def scenario():
        await wait_until_gone(run_id)
        provider = await backend.open(run_id=run_id)
        try:
            assert traces(provider) == 0
        finally:
            await provider.close()

    asyncio.run(scenario())


def test_empty_groups_of_a_gone_harness_are_removed():
    groups, reason = find_groups()
    if groups is None:
        assert reason
        return
    dead = groups.make("orphan", limits=_limits())
    mine = [directory.name for directory in dead.directories]
    renamed = []
    for directory in dead.directories:
        target = directory.with_name("thundersync.999999999.1.orphan")
        target.mkdir()
        renamed.append(target)
    assert groups.reap() >= len(renamed)  # others may have left some too
    assert not any(path.exists() for path in renamed)
    assert all(directory.exists() for directory in dead.directories), mine
    dead.remove()


def _limits():
    from environments.sandbox.cgroups import Limits

    return Limits(memory_mb=64, pids=8, cpus=1.0)
