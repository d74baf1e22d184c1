"""What a call costs on either cluster, by turns in one run: python tests/ray/calls.py (needs Ray).

A pipe to a worker process, an actor of a cluster of this script's own; one call at a time, and 64
at once, of a verb that does nothing.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROUNDS, CALLS, AT_ONCE = 20, 20, 64


async def one_by_one(worker: Any) -> float:
    """Milliseconds of a call."""
    began_s = time.perf_counter()
    for _ in range(CALLS):
        await worker.call("environment", "HOME")
    return (time.perf_counter() - began_s) * 1000 / CALLS


async def at_once(worker: Any) -> float:
    began_s = time.perf_counter()
    await asyncio.gather(*(worker.call("environment", "HOME") for _ in range(AT_ONCE)))
    return (time.perf_counter() - began_s) * 1000 / AT_ONCE


async def main() -> None:
    from harness.cluster.local import Worker
    from harness.cluster.needs import Group
    from harness.cluster.ray_cluster import RayCluster
    from harness.composition import compose

    config = compose(["cluster=ray", "sandbox.max_parallel=1", "cluster.start_timeout_s=300"])
    with tempfile.TemporaryDirectory() as folder:
        cluster = RayCluster(config, [Group("engine", "SPREAD", [{"CPU": 1.0}])], Path(folder))
        try:
            cluster.connect()
            await cluster.place()
            process = Worker("engine/0", "services:Echo", {}, threads=1)
            workers = {
                "local": process,
                "ray": cluster.worker("engine/0", "services:Echo", {}, threads=1),
            }
            for worker in workers.values():
                await worker.start()
            for measure in (one_by_one, at_once):
                took: dict[str, list[float]] = {name: [] for name in workers}
                for _ in range(ROUNDS):
                    for name, worker in workers.items():
                        took[name].append(await measure(worker))
                middle = {name: statistics.median(values) for name, values in took.items()}
                ratio = middle["ray"] / middle["local"]
                shown = ", ".join(f"{name} {value:.2f} ms" for name, value in middle.items())
                print(f"{measure.__name__}: {shown}, ratio {ratio:.1f}")
            await process.close()
        finally:
            await cluster.close()


if __name__ == "__main__":
    path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    os.environ["PYTHONPATH"] = path + os.pathsep + os.environ.get("PYTHONPATH", "")
    sys.path[:0] = path.split(os.pathsep)
    asyncio.run(main())
