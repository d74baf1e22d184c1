"""Which cluster a configuration means, and what it cannot be. Torch-free and, until one is opened,
Ray-free."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from harness.cluster import needs
from harness.cluster.local import LocalCluster
from harness.cluster.protocol import Cluster
from harness.config import ClusterConfig, Config
from harness.protocols import UsageError

INSTALL = "pip install -c constraints.txt -c constraints-ray.txt -e '.[ray]'"
_RAYS_OWN = ("address", "publication", "start_timeout_s")


def check(config: Config) -> None:
    """Raises UsageError, one line, for a cluster that there cannot be."""
    _replicas(config)
    cluster = config.cluster
    if cluster.name == "local":
        defaults = ClusterConfig()
        for key in _RAYS_OWN:
            value = getattr(cluster, key)
            if value != getattr(defaults, key):
                raise UsageError(
                    f"cluster.{key}={value}: cluster=local does not read it; leave it "
                    f"{getattr(defaults, key)}, or take cluster=ray"
                )
        return
    if cluster.pin_cores:
        raise UsageError(
            "cluster.pin_cores=true: cluster=ray places processes by its own count of CPUs, not on "
            "cores; take false, or cluster=local"
        )
    if config.sandbox.hosts:
        raise UsageError(
            f"sandbox.hosts={list(config.sandbox.hosts)}: under cluster=ray each node with a "
            "sandbox resource uses its own engine; leave it empty, or take cluster=local"
        )
    if on_paper(config):
        return
    if importlib.util.find_spec("ray") is None:
        raise UsageError(f"cluster=ray: ray is not installed; {INSTALL}")


def _replicas(config: Config) -> None:
    replicas, devices = config.engine.replicas, config.schedule.engine_devices
    if config.clock.kind == "virtual":
        return  # the hardware's, filled in
    if devices % replicas:
        raise UsageError(
            f"engine.replicas={replicas}: cannot share schedule.engine_devices={devices} evenly; "
            "take a divisor of it, or more devices"
        )


def on_paper(config: Config) -> bool:
    """Whether nothing of a run is anywhere: its workers are on paper, whatever the cluster."""
    return config.env.name == "simulated" or (
        config.clock.kind == "virtual" and config.replay is not None
    )


def paper_facts(config: Config) -> dict[str, Any]:
    """For the manifest of a run on paper: what cluster=ray would be asked for. Nothing is started,
    and nothing in such a run asks where its parts are."""
    name = config.cluster.name
    if name == "local":
        return {"name": name}
    return {"name": name, "why": "on paper", "groups": needs.described(needs.on_paper(config))}


@contextlib.asynccontextmanager
async def open_cluster(
    config: Config, folder: Path | None, *, say: Callable[[str], None]
) -> AsyncIterator[Cluster]:
    """The cluster of a run under wall time; `folder` is where it publishes weights, None where
    nothing trains. What was started is ended on the way out."""
    if config.cluster.name == "local":
        yield LocalCluster()
        return
    from harness.cluster.ray_cluster import RayCluster

    cluster = RayCluster(config, needs.groups(config, folder is not None), folder)
    try:
        cluster.connect()
        await cluster.place()
        say(f"cluster: {cluster.why}")
        yield cluster
    finally:
        await cluster.close()


@contextlib.contextmanager
def open_for_workshop(
    config: Config,
    begin: Callable[[Coroutine[Any, Any, Any]], Future[Any]],
    *,
    say: Callable[[str], None],
) -> Iterator[Cluster]:
    """The same for a run with real learning in virtual time, which has its commands alone on it;
    `begin` runs coroutines beside the virtual clock's thread."""
    if config.cluster.name == "local":
        yield LocalCluster()
        return
    from harness.cluster.ray_cluster import RayCluster

    cluster = RayCluster(config, needs.groups(config, True), None)
    try:
        cluster.connect()
        begin(cluster.place()).result()
        say(f"cluster: {cluster.why}")
        yield cluster
    finally:
        try:
            begin(cluster.leave()).result()
        finally:
            cluster.disconnect()
