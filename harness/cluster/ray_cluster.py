"""cluster=ray: a run's processes as actors in placement groups, its sandboxes on the nodes that
have room for them (docs/ray.md)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.cluster import needs
from harness.cluster.needs import Group, in_words
from harness.cluster.protocol import MakeWorker
from harness.cluster.ray_api import load_ray
from harness.cluster.ray_session import Session, room
from harness.cluster.ray_worker import Place, RayWorker, Shared
from harness.config import Config
from harness.protocols import SandboxProvider, UsageError

SANDBOXES = "sandboxes"
_LOOK_S = 0.05


class RayCluster:
    """`connect`, then `place`; `close` whatever came of them."""

    name = "ray"

    def __init__(self, config: Config, asked: Sequence[Group], folder: Path | None) -> None:
        """`folder` is where weights are published, None where nothing trains."""
        self._config, self._folder = config, folder
        self._asked = list(asked)
        self._session = Session(config.cluster.address)
        self._groups: dict[str, Any] = {}
        self._nodes: dict[str, list[str]] = {}  # group -> its bundles' nodes, by address
        self._bundles: dict[str, Sequence[Mapping[str, float]]] = {}
        self._workers: list[RayWorker] = []
        self._hosts: dict[str, int] = {}
        self.why = ""

    # -- placement ---------------------------------------------------------------------------------

    def connect(self) -> None:
        """In the main thread. Raises UsageError."""
        sandboxes = 0 if self._config.replay is not None else self._config.sandbox.max_parallel
        asked = needs.total(self._asked)
        self._session.open(asked.get("CPU", 0), asked.get("GPU", 0), sandboxes)
        if sandboxes:
            self._asked.append(self._sandboxes(room(load_ray().nodes)))

    def _sandboxes(self, alive: Mapping[str, float]) -> Group:
        """One host on each node that has room for some."""
        limit = self._config.sandbox.max_parallel
        self._hosts = needs.shares(alive, limit)
        if not self._hosts:
            raise UsageError(
                f"sandbox.max_parallel={limit}: no node of the cluster at cluster.address="
                f"{self._config.cluster.address} has a sandbox resource; start those that may run "
                "sandboxes with --resources='{\"sandbox\": 64}'"
            )
        bundles = [{"sandbox": float(count)} for count in self._hosts.values()]
        return Group(SANDBOXES, "STRICT_SPREAD", bundles)

    def _reserve(self, group: Group) -> None:
        bundles = [dict(bundle) for bundle in group.bundles]
        make = load_ray("ray.util").placement_group
        self._groups[group.name] = make(bundles, strategy=group.strategy)
        self._bundles[group.name] = group.bundles

    def _miss_nodes(self) -> None:
        """Ray takes seconds to miss a node: one that had been gone may have been counted, and would
        be waited for. Where none is left, another may come."""
        alive = room(load_ray().nodes)
        if not alive or self._hosts.keys() <= alive.keys():
            return
        load_ray("ray.util").remove_placement_group(self._groups[SANDBOXES])
        self._asked[-1] = self._sandboxes(alive)  # which were asked for last
        self._reserve(self._asked[-1])

    async def place(self) -> None:
        """Reserve all that the run needs. Raises UsageError, one line, where that is not there
        within cluster.start_timeout_s."""
        ray = load_ray()

        limit_s = self._config.cluster.start_timeout_s
        has = ray.cluster_resources()
        short = {k: n for k, n in needs.total(self._asked).items() if has.get(k, 0) < n}
        if short:
            raise self._refused("has", has, f"too few: {in_words(short)}")
        for group in self._asked:
            self._reserve(group)
        try:
            async with asyncio.timeout(limit_s):
                for name in self._groups:
                    while not await asyncio.to_thread(self._groups[name].wait, 1):
                        self._miss_nodes()
                        await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            why = f"not to be had within cluster.start_timeout_s={limit_s:g} s"
            raise self._refused("has free", ray.available_resources(), why) from None
        known = ray.nodes()  # also those that are gone
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in known}
        alive = sum(node["Alive"] for node in known)
        for name, group in self._groups.items():
            placed = load_ray("ray.util").placement_group_table(group)["bundles_to_node_id"]
            self._nodes[name] = [addresses[placed[i]] for i in range(len(placed))]
        nodes = len({node for group in self._groups.values() for node in _node_ids(group)})
        where = "of its own" if self._session.own else f"at {self._config.cluster.address}"
        asked = in_words(needs.total(self._asked))
        self.why = f"ray {ray.__version__} {where}: {asked} on {nodes} of {alive} nodes"

    def _refused(self, verb: str, has: Mapping[str, float], why: str) -> UsageError:
        asked = in_words(needs.total(self._asked))
        known = {name: has.get(name, 0) for name in ("CPU", "GPU", "sandbox")}
        bundles = "; ".join(
            f"{group.name} {len(group.bundles)} x ({in_words(group.bundles[0])}) {group.strategy}"
            for group in self._asked
        )
        return UsageError(
            f"cluster=ray: the run asks for {asked} ({bundles}), the cluster {verb} "
            f"{in_words(known)}: {why}; take fewer devices, or a larger cluster"
        )

    # -- the seam ----------------------------------------------------------------------------------

    @property
    def worker(self) -> MakeWorker:
        return self._worker

    def _worker(
        self,
        name: str,
        target: str,
        kwargs: dict[str, Any],
        *,
        threads: int,
        affinity: Sequence[int] | None = None,
    ) -> RayWorker:
        trains = self._folder is not None
        group, bundle = needs.bundle_of(name, self._config, trains)
        rank = name.startswith("learner/")
        guest = name.startswith("engine/") and group == "learner"
        apart = rank and len(set(self._nodes[group])) > 1
        if rank and "GPU" in self._bundles[group][bundle]:  # Ray shows an actor its own alone
            kwargs = kwargs | {"placement": replace(kwargs["placement"], gpu=0)}
        made = RayWorker(
            name,
            target,
            kwargs,
            place=Place(self._groups[group], bundle, {} if guest else self._bundles[group][bundle]),
            threads=threads,
            start_timeout_s=self._config.cluster.start_timeout_s,
            interface_of=self._nodes[group][bundle] if apart else None,
            check=self._sees_folder if rank else None,
        )
        self._workers.append(made)
        return made

    async def _sees_folder(self, worker: RayWorker) -> None:
        """A rank meets the others, publishes and saves in the run's folder."""
        if self._folder is not None and not await worker.exists(str(self._folder)):
            raise UsageError(
                f"hydra.run.dir={self._folder.parent}: {worker.name} on {worker.where['ip']} does "
                "not see it; put the run's folder on a file system that all nodes share"
            )

    async def share(self, path: str) -> Any:
        """The path where every engine reads it; else one object, once for all of them."""
        ray = load_ray()

        wanted = self._config.cluster.publication
        engines = [w for w in self._workers if w.name.startswith("engine/") and w.where]
        if wanted == "folder" or (wanted == "auto" and not any(w.elsewhere for w in engines)):
            return path
        content = await asyncio.to_thread(Path(path).read_bytes)
        return Shared(Path(path).name, ray.put(content))

    async def sandboxes(self, arguments: Mapping[str, Any]) -> SandboxProvider:
        from harness.cluster.hosted import HostedSandboxes

        def host(number: int) -> RayWorker:
            made = RayWorker(
                f"{SANDBOXES}/{number}",
                "harness.cluster.sandbox_service:SandboxService",
                {},
                place=Place(self._groups[SANDBOXES], number, self._bundles[SANDBOXES][number]),
                threads=1,
                start_timeout_s=self._config.cluster.start_timeout_s,
            )
            self._workers.append(made)
            return made

        rooms = list(self._hosts.values())
        return await HostedSandboxes.open(
            host, rooms, arguments, wait_s=self._config.cluster.start_timeout_s
        )

    def facts(self) -> Mapping[str, Any]:
        return {
            "name": self.name,
            "why": self.why,
            "address": self._config.cluster.address,
            "groups": {
                group.name: {
                    "strategy": group.strategy,
                    "bundles": [dict(bundle) for bundle in group.bundles],
                    "nodes": self._nodes.get(group.name),
                }
                for group in self._asked
            },
        }

    async def close(self) -> None:
        """End what this run started: its actors, its placement groups and, where the cluster is its
        own, that. A cluster that it joined is left as it was."""
        try:
            await self.leave()
        finally:
            self.disconnect()

    async def leave(self) -> None:
        """The cluster without the run's actors and placement groups."""
        await asyncio.gather(*(worker.close() for worker in self._workers))
        with contextlib.suppress(Exception):  # of a cluster that may be gone
            util = load_ray("ray.util")

            for group in self._groups.values():
                util.remove_placement_group(group)
        self._groups.clear()

    def disconnect(self) -> None:
        """In the main thread."""
        self._session.close()


def _node_ids(group: Any) -> list[str]:
    return list(load_ray("ray.util").placement_group_table(group)["bundles_to_node_id"].values())
