"""Real sandboxes on two nodes of a cluster, and real ends of hosts and nodes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import Any

import psutil
import pytest

from environments.protocols import ExecResult, InfrastructureError, SandboxSpec
from environments.sandbox.images import MINI_IMAGE
from environments.sandbox.options import ProviderOptions
from harness.cluster.hosted import HostedSandboxes
from harness.cluster.ray_cluster import RayCluster

pytestmark = pytest.mark.ray
SPEC = SandboxSpec(image=MINI_IMAGE, memory_mb=256, pids=64, scratch_mb=16)


async def open_on(cluster: RayCluster, **options: Any) -> HostedSandboxes:
    arguments = {
        "kind": "bubblewrap", "image": MINI_IMAGE, "run_id": f"ray-{os.getpid()}",
        "max_parallel": 8, "options": ProviderOptions(**options), "expect": None,
        "expect_parallel": 8,
    }  # fmt: skip
    return await cluster.sandboxes(arguments)  # type: ignore[return-value]


def host_of(provider: HostedSandboxes, sandbox: Any) -> int:
    return provider._lives.all.index(sandbox._life)


def account(provider: HostedSandboxes) -> tuple[int, int, int, int]:
    counted = provider.counters
    return counted.created, counted.removed, counted.lost, counted.leaked


def test_a_sandbox_on_a_host_is_a_sandbox(on_ray) -> None:
    async def scenario(cluster: RayCluster) -> None:
        provider = await open_on(cluster)
        try:
            assert provider.kind == "bubblewrap" and "on 2 hosts of [4, 4]" in provider.why
            boxes = await asyncio.gather(*(provider.start(SPEC) for _ in range(8)))
            assert Counter(host_of(provider, b) for b in boxes) == {0: 4, 1: 4}
            assert len({b.sandbox_id for b in boxes}) == 8
            waits = asyncio.create_task(provider.start(SPEC))  # all slots are taken
            one, other = boxes[0], boxes[-1]
            await one.put({"a.txt": b"hello\n"})
            result = await one.exec("cat a.txt; exit 3", timeout_s=20)
            assert (result.output, result.exit_code) == ("hello\n", 3)
            assert await one.get("a.txt") == b"hello\n"
            with pytest.raises(FileNotFoundError):
                await other.get("a.txt")
            with pytest.raises(InfrastructureError, match=r"^start: .*no host can be allowed"):
                await one.allow_hosts(["pypi.org"])
            slow = await other.exec("sleep 60", timeout_s=0.3)
            assert slow.timed_out
            await one.exec("sleep 100 & disown", timeout_s=20)
            await one.end_processes()
            assert not waits.done()
            await one.stop()
            await one.stop()
            await (await waits).stop()
            with pytest.raises(InfrastructureError, match="exec_transport"):
                await one.exec("true", timeout_s=5)
            given_up = asyncio.create_task(provider.start(SPEC))
            await asyncio.sleep(0)
            given_up.cancel()  # what it began is removed again
            await asyncio.gather(given_up, return_exceptions=True)
        finally:
            await provider.close()
        created, removed, lost, leaked = account(provider)
        assert created == removed >= 9 and lost == leaked == 0

    on_ray(scenario)


def test_a_killed_host_takes_its_sandboxes_and_no_others(on_ray) -> None:
    async def scenario(cluster: RayCluster) -> None:
        provider = await open_on(cluster)
        try:
            boxes = await asyncio.gather(*(provider.start(SPEC) for _ in range(4)))
            gone = [b for b in boxes if host_of(provider, b) == 0]
            stay = [b for b in boxes if host_of(provider, b) == 1]
            worker = provider._lives.all[0].worker
            inside = psutil.Process(worker.pid).children(recursive=True)
            assert len(inside) >= 2
            running = [asyncio.create_task(b.exec("sleep 60", timeout_s=90)) for b in gone]
            await asyncio.sleep(0.3)
            os.kill(worker.pid, signal.SIGKILL)
            for task in running:
                with pytest.raises(InfrastructureError, match="the actor ended") as lost:
                    await task
                assert lost.value.kind == "exec_transport"  # never the agent's doing
            for box in gone:
                with pytest.raises(InfrastructureError):
                    await box.get("a.txt")
                await box.stop()  # it has ended: nothing to say
            for box in stay:
                assert (await box.exec("echo on", timeout_s=20)).output == "on\n"
            _, alive = await asyncio.to_thread(psutil.wait_procs, inside, 20)
            assert alive == []
            while provider._lives.starting:
                await asyncio.sleep(0.05)
            more = await asyncio.gather(*(provider.start(SPEC) for _ in range(6)))
            assert Counter(host_of(provider, b) for b in more) == {0: 4, 1: 2}
            assert provider.counters.engine_losses == 1
        finally:
            await provider.close()
        assert account(provider) == (10, 8, 2, 0)

    on_ray(scenario, limit_s=240)


def test_a_lost_node_costs_its_sandboxes_alone(on_ray, nodes, add_node) -> None:
    async def scenario(cluster: RayCluster) -> None:
        provider = await open_on(cluster)
        try:
            boxes = await asyncio.gather(*(provider.start(SPEC) for _ in range(4)))
            (node,) = [n for n in nodes.worker_nodes if n.node_id == list(cluster._hosts)[1]]
            # A host may outlive its node by a moment: what runs for longer does not.
            long = [asyncio.create_task(b.exec("sleep 30; echo on", timeout_s=90)) for b in boxes]
            await asyncio.sleep(0.5)
            await asyncio.to_thread(nodes.remove_node, node, allow_graceful=False)
            ended = await asyncio.gather(*long, return_exceptions=True)
            kinds = [e.kind for e in ended if isinstance(e, InfrastructureError)]
            assert kinds == ["exec_transport"] * 2
            assert [e.output for e in ended if isinstance(e, ExecResult)] == ["on\n"] * 2
            # Which of two equal bundles is on which node is Ray's choice.
            pairs = zip(boxes, ended, strict=True)
            stay = {host_of(provider, box) for box, e in pairs if isinstance(e, ExecResult)}
            assert len(stay) == 1
            for box in boxes:
                await box.stop()
            for _ in range(3):  # the other host goes on, however long this one is away
                box = await provider.start(SPEC)
                assert {host_of(provider, box)} == stay
                await box.stop()
            add_node()  # in the main thread: it takes signals
            while provider._lives.starting:  # on the node that has come
                await asyncio.sleep(0.1)
            boxes = await asyncio.gather(*(provider.start(SPEC) for _ in range(8)))
            assert Counter(host_of(provider, b) for b in boxes) == {0: 4, 1: 4}
        finally:
            await provider.close()
        assert account(provider) == (15, 13, 2, 0)

    on_ray(scenario, limit_s=240)
