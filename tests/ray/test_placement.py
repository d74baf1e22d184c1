"""What cannot be placed is refused in one line, in time; a cluster that was joined stays."""

from __future__ import annotations

import time
from typing import Any

import pytest

from harness.cluster import ray_cluster
from harness.cluster.needs import Group
from harness.cluster.ray_cluster import RayCluster
from harness.cluster.ray_session import room
from harness.protocols import UsageError

pytestmark = pytest.mark.ray


async def never(cluster: RayCluster) -> None:
    raise AssertionError("it was placed")


def refused(on_ray: Any, *overrides: str, asked: list[Group] | None = None) -> str:
    started_s = time.monotonic()
    with pytest.raises(UsageError) as raised:
        on_ray(never, *overrides, asked=asked)
    assert "\n" not in str(raised.value)
    assert time.monotonic() - started_s < 40
    return str(raised.value)


def test_more_than_the_cluster_has(on_ray) -> None:
    many = [Group("learner", "PACK", [{"CPU": 2.0}] * 20)]
    assert refused(on_ray, asked=many) == (
        "cluster=ray: the run asks for CPU 40, sandbox 8 (learner 20 x (CPU 2) PACK; sandboxes 2 x "
        "(sandbox 4) STRICT_SPREAD), the cluster has CPU 8, GPU 0, sandbox 16: too few: CPU 40; "
        "take fewer devices, or a larger cluster"
    )


def test_a_gpu_where_there_is_none(on_ray) -> None:
    line = refused(on_ray, asked=[Group("learner", "PACK", [{"CPU": 1, "GPU": 1}])])
    assert "the cluster has CPU 8, GPU 0, sandbox 16: too few: GPU 1" in line


def test_enough_in_all_but_on_no_single_node(on_ray) -> None:
    line = refused(
        on_ray, "cluster.start_timeout_s=3", asked=[Group("learner", "PACK", [{"CPU": 6.0}])]
    )
    assert "the cluster has free CPU 8" in line
    assert "not to be had within cluster.start_timeout_s=3 s" in line


def test_a_node_that_was_gone_already_is_not_waited_for(on_ray, monkeypatch) -> None:
    """Ray takes seconds to miss one: a run that starts meanwhile counts it among its hosts."""
    counted = [{"gone": 8.0}, {}]  # by the first look, and by those after it
    monkeypatch.setattr(
        ray_cluster, "room", lambda alive: room(alive) | (counted.pop(0) if counted else {})
    )

    async def scenario(cluster: RayCluster) -> None:
        sandboxes = cluster.facts()["groups"]["sandboxes"]
        assert sandboxes["bundles"] == [{"sandbox": 4.0}] * 2
        assert len(sandboxes["nodes"]) == 2 and counted == []

    on_ray(scenario, "cluster.start_timeout_s=30")


def test_no_cluster_at_the_address(on_ray) -> None:
    for address in ("127.0.0.1:1", "nonsense"):
        line = refused(on_ray, f"cluster.address={address}")
        assert line.startswith(f"cluster.address={address}: no Ray cluster answers there (")


def test_a_cluster_that_was_joined_is_left_as_it_was(on_ray, nodes) -> None:
    """Every bundle is free again, and the next run finds it."""
    import ray

    async def scenario(cluster: RayCluster) -> None:
        assert cluster.why.endswith(": CPU 4, sandbox 8 on 3 of 3 nodes")
        assert ray.available_resources()["sandbox"] == 8.0
        facts = cluster.facts()["groups"]
        assert facts["sandboxes"]["bundles"] == [{"sandbox": 4.0}] * 2
        assert len(facts["learner"]["nodes"]) == 2

    for _ in range(2):
        on_ray(scenario)
    ray.init(address=nodes.address, log_to_driver=False)
    try:
        deadline = time.monotonic() + 30
        while ray.available_resources() != ray.cluster_resources():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert len([n for n in ray.nodes() if n["Alive"]]) == 3
    finally:
        ray.shutdown()
