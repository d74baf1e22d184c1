"""What a run asks a cluster for: bundles of resources, in groups that are placed together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.charged import settings as charged
from harness.cluster.devices import devices
from harness.config import Config


@dataclass(frozen=True)
class Group:
    """Bundles that there are all of or none. `strategy` is one of Ray's: PACK keeps them near one
    another, SPREAD apart where that can be."""

    name: str
    strategy: str
    bundles: Sequence[Mapping[str, float]]


def engine_threads(config: Config) -> int:
    """Of each of the engine's replicas."""
    return config.schedule.engine_devices // config.engine.replicas


def groups(config: Config, trains: bool) -> list[Group]:
    """Of the processes of a run under wall time; one with real learning in virtual time has them
    in the harness itself. Engine and learner of a colocated run share the learner's."""
    if charged.asked(config) or config.agent.name != "policy":
        return []
    found = []
    learner, colocated = config.learner, config.schedule.placement == "colocated"
    if trains:
        each = config.schedule.learner_devices // learner.ranks
        rank: dict[str, float] = {"CPU": each}
        if learner.device == "cuda":
            rank = {"CPU": 1, "GPU": 1}
        found.append(Group("learner", "PACK", [rank] * learner.ranks))
    if not (trains and colocated):
        replica: dict[str, float] = {"CPU": engine_threads(config)}
        if config.engine.device == "cuda":
            replica = dict.fromkeys(("CPU", "GPU"), float(config.engine.tensor_parallel))
        found.append(Group("engine", "SPREAD", [replica] * config.engine.replicas))
    teacher = devices(config).teacher
    if trains and teacher:
        found.append(Group("teacher", "PACK", [{"CPU": teacher}]))
    return found


def on_paper(config: Config) -> list[Group]:
    """Of a run whose parts are all on paper: the hardware's devices, as its split has them."""
    hardware = config.hardware
    learner = {"GPU": float(hardware.learner_tensor_parallel)}
    engine = {"GPU": float(hardware.engine_tensor_parallel)}
    return [
        Group("learner", "PACK", [learner] * config.learner.ranks),
        Group("engine", "SPREAD", [engine] * config.engine.replicas),
        Group("sandboxes", "PACK", [{"sandbox": float(config.sandbox.max_parallel)}]),
    ]


def described(asked: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """For the manifest: strategy, number and content of the bundles of each group."""
    return {
        group.name: {
            "strategy": group.strategy,
            "count": len(group.bundles),
            "bundle": dict(group.bundles[0]),
        }
        for group in asked
    }


def bundle_of(name: str, config: Config, trains: bool) -> tuple[str, int]:
    """(group, bundle) of the process of this name."""
    kind, _, number = name.partition("/")
    if kind == "engine" and trains and config.schedule.placement == "colocated":
        return "learner", int(number) * config.learner.ranks // config.engine.replicas
    return kind, int(number)


def total(asked: Sequence[Group]) -> dict[str, float]:
    """Of each resource, in all groups."""
    sums: Counter[str] = Counter()
    for group in asked:
        for bundle in group.bundles:
            sums.update(bundle)  # pyright: ignore[reportArgumentType]
    return dict(sums)


def in_words(resources: Mapping[str, float]) -> str:
    """`CPU 2, sandbox 64`."""
    return ", ".join(f"{name} {count:g}" for name, count in sorted(resources.items()))


def shares(room: Mapping[str, float], limit: int) -> dict[str, int]:
    """How many of `limit` sandboxes each node takes, as evenly as their room allows; nodes without
    any are left out."""
    taken = dict.fromkeys(room, 0)
    for _ in range(limit):
        free = [node for node in taken if taken[node] + 1 <= room[node]]
        if not free:
            break
        taken[min(free, key=lambda node: taken[node])] += 1
    return {node: count for node, count in taken.items() if count}
