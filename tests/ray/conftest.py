"""Ray's own cluster of several nodes, all on this machine."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.cluster.needs import Group
from harness.cluster.ray_cluster import RayCluster
from harness.composition import compose
from harness.config import Config

HERE = Path(__file__).parent
# A head for the driver, and two nodes that can run sandboxes and may be taken away.
HEAD = {"num_cpus": 4}
NODE = {"num_cpus": 2, "resources": {"sandbox": 8}}


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    """ray.cluster_utils.Cluster; whoever takes a node away puts another in its place."""
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[1]), path])
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 100 << 20, "include_dashboard": False}
    settings = {"_system_config": {"worker_niceness": 0}}
    cluster = Cluster(initialize_head=True, head_node_args=HEAD | small | settings)
    for _ in range(2):
        cluster.add_node(**NODE)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def jobs() -> Iterator[ModuleType]:
    """The module beside this one; a run that a test leaves behind is ended."""
    module = _load(HERE / "jobs.py")
    yield module
    module.end_all()


@pytest.fixture(scope="session")
def small_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As tests/harness has it."""
    theirs = _load(HERE.parent / "harness" / "conftest.py")
    return theirs.small_recording.__wrapped__(tmp_path_factory)


def _load(path: Path) -> ModuleType:
    name = f"tests_ray_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def add_node(nodes: Any) -> Callable[[], Any]:
    return lambda: nodes.add_node(**NODE)


@pytest.fixture
def config(nodes: Any) -> Callable[..., Config]:
    def make(*overrides: str) -> Config:
        return compose(
            ["cluster=ray", f"cluster.address={nodes.address}", "sandbox=bubblewrap",
             "sandbox.max_parallel=8", "cluster.start_timeout_s=300", *overrides]
        )  # fmt: skip

    return make


@pytest.fixture
def on_ray(config: Callable[..., Config], tmp_path: Path) -> Callable[..., None]:
    """Run a scenario on an opened cluster; afterwards nothing of it is left in Ray."""

    def run(
        scenario: Callable[[RayCluster], Coroutine[Any, Any, None]],
        *overrides: str,
        asked: list[Group] | None = None,
        limit_s: float = 120,
    ) -> None:
        made = config(*overrides)
        one = {"CPU": 1.0}
        groups = [Group("engine", "SPREAD", [one, one]), Group("learner", "PACK", [one, one])]

        async def body() -> None:
            cluster = RayCluster(made, groups if asked is None else asked, tmp_path)
            try:
                cluster.connect()
                await cluster.place()
                async with asyncio.timeout(limit_s):
                    await scenario(cluster)
            finally:
                await cluster.close()

        asyncio.run(body())

    return run
