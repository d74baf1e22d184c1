"""Actors as workers: every kind of verb, order, errors, real deaths, files, clocks."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.cluster import monotonic
from harness.cluster.protocol import WorkerEnded, WorkerError
from harness.cluster.ray_cluster import RayCluster
from harness.cluster.ray_worker import RayWorker
from harness.protocols import UsageError

pytestmark = pytest.mark.ray
AT_ONCE_S = 30.0  # of a limit of minutes; a loaded machine needs some


def echo(cluster: RayCluster, name: str = "engine/0", **kwargs: Any) -> RayWorker:
    return cluster.worker(name, "services:Echo", kwargs, threads=3)  # type: ignore[return-value]


def test_a_service_is_called_as_in_a_process(on_ray) -> None:
    async def scenario(cluster: RayCluster) -> None:
        worker = echo(cluster, said="hello")
        await worker.start()
        heard = await asyncio.gather(*(worker.call("hear", n) for n in range(100)))
        assert heard[-1] == list(range(100))  # they begin in the order of asking
        many = [f"n{n}" for n in range(50)]
        assert await asyncio.gather(*(worker.call("later", one) for one in many)) == many
        slow = asyncio.create_task(worker.call("wait", 0.5))
        assert await worker.call("hear", 100) == [*range(101)]  # beside what waits
        assert not slow.done() and await slow == "waited"
        assert await worker.call("environment", "OMP_NUM_THREADS") == "3"
        with pytest.raises(WorkerError, match=r"engine/0: ValueError: a wrong request\n--- in the"):
            await worker.call("later", "wrong")
        with pytest.raises(WorkerError, match="engine/0: AttributeError"):
            await worker.call("no_such_verb")
        assert len(await worker.call("hear", 101)) == 102
        with pytest.raises(UsageError, match=r"^said=usage: not available$"):
            await echo(cluster, "engine/1", said="usage").start()
        await worker.close()
        await worker.close()

    on_ray(scenario)


def test_deaths_are_told_at_once_and_in_one_line(on_ray) -> None:
    async def scenario(cluster: RayCluster) -> None:
        killed, broken = echo(cluster), echo(cluster, "engine/1")
        await asyncio.gather(killed.start(), broken.start())
        waiting = [asyncio.create_task(killed.call(v, 600.0)) for v in ("wait", "block")]
        await asyncio.sleep(0.2)
        os.kill(killed.pid, signal.SIGKILL)
        started_s = time.monotonic()
        for task in waiting:
            with pytest.raises(WorkerEnded, match=r"^engine/0: the actor ended on .*process has d"):
                await task
        with pytest.raises(WorkerEnded, match="engine/0"):
            await killed.call("hear", 1)
        with pytest.raises(WorkerEnded, match="engine/1: the actor ended"):  # not for ever
            await asyncio.gather(broken.call("later", "defect"), broken.call("later", 1))
        assert time.monotonic() - started_s < AT_ONCE_S
        again = echo(cluster)  # in the same bundle
        await again.start()
        assert await again.call("hear", 5) == [5]

    on_ray(scenario)


def test_a_service_that_starts_processes_takes_them_with_it(on_ray, tmp_path: Path) -> None:
    """However it ends: closed, its process killed, or the actor above it."""
    log = tmp_path / "log"

    def starter(cluster: RayCluster, name: str, **more: Any) -> RayWorker:
        options = {"log": str(log), **more}
        return cluster.worker(name, "services:Starter", options, threads=1)  # type: ignore[return-value]

    async def gone(pids: list[int]) -> None:
        async with asyncio.timeout(AT_ONCE_S):
            while any(map(psutil.pid_exists, pids)):
                await asyncio.sleep(0.05)

    async def scenario(cluster: RayCluster) -> None:
        with pytest.raises(WorkerError, match=r"^engine/1: RuntimeError: no such model\n"):
            await starter(cluster, "engine/1", fails=True).start()
        for victim in (None, 1, 0):
            worker = starter(cluster, "engine/0")
            await worker.start()
            pids = [worker.pid, *await worker.call("pids")]
            assert len(set(pids)) == 3
            path = tmp_path / "weights"
            path.write_bytes(b"weights")
            assert await worker.call("read", await cluster.share(str(path)), 7) == (b"weights", 7)
            if victim is None:
                await worker.close()
                assert log.read_text() == "close\n"
            else:
                os.kill(pids[victim], signal.SIGKILL)
                with pytest.raises(WorkerEnded, match=r"^engine/0: the (actor|worker process) end"):
                    await worker.call("pids")
            await gone(pids)
        assert log.read_text() == "close\n"

    on_ray(scenario, "cluster.publication=object")


def test_a_file_goes_to_all_as_one_object(on_ray, tmp_path: Path) -> None:
    async def scenario(cluster: RayCluster) -> None:
        workers = [echo(cluster), echo(cluster, "engine/1")]
        await asyncio.gather(*(w.start() for w in workers))
        for version in (1, 2):
            path = tmp_path / f"weights-{version}.safetensors"
            path.write_bytes(os.urandom(1 << 20))
            where = await cluster.share(str(path))
            answers = await asyncio.gather(
                *(w.call("update_weights", where, version) for w in workers)
            )
            for content, number, beside in answers:
                assert (content, number, beside) == (path.read_bytes(), version, [path.name])
        assert list(Path("/tmp").glob(f"thundersync-ray.{workers[0].pid}.*")) == []

    on_ray(scenario, "cluster.publication=object")


def test_on_one_machine_the_folder_is_enough(on_ray, tmp_path: Path) -> None:
    async def scenario(cluster: RayCluster) -> None:
        worker = echo(cluster)
        await worker.start()
        assert not worker.elsewhere
        assert await cluster.share("some/path") == "some/path"
        (interval,) = await worker.call("drain_intervals")
        assert abs(interval.end_s - time.monotonic()) < AT_ONCE_S
        # As if on another machine: the offset is measured, here of a clock that is the same one.
        readings = []
        for _ in range(5):
            asked_s = monotonic.now()
            theirs_s = await worker._answer(worker._actor.now.remote())
            readings.append(monotonic.Reading(asked_s, theirs_s, monotonic.now()))
        offset, error = monotonic.offset_s(readings)
        assert abs(offset) <= error
        worker.where = {**worker.where, "clock": "another"}
        assert worker.elsewhere
        before = time.monotonic()
        (moved,) = await worker.call("drain_intervals")
        assert moved.end_s - moved.start_s == pytest.approx(1.0)
        assert before - 0.5 < moved.end_s < time.monotonic() + 0.5

    on_ray(scenario)


def test_actors_die_with_their_cluster(on_ray) -> None:
    pids = []

    async def scenario(cluster: RayCluster) -> None:
        worker = echo(cluster)
        await worker.start()
        pids.append(worker.pid)

    on_ray(scenario)
    deadline = time.monotonic() + AT_ONCE_S
    while psutil.pid_exists(pids[0]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not psutil.pid_exists(pids[0])
