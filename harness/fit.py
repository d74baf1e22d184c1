"""Whether policy x ledger x devices fits into memory, and with how many open groups; before
anything is loaded. The learner checks again what it then measures (harness.memory). Torch-free.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.config import Config
from harness.footprint import PROCESS_BYTES, Footprint, footprint
from harness.hardware import available_bytes
from harness.policy.load import resolve
from harness.policy.size import PolicySize, policy_size
from harness.protocols import UsageError


@dataclass(frozen=True)
class Room:
    """Memory that is free: of `where`, and of the host, which is the same where the learner works
    on a CPU. `devices`: the learner's, where a preset says so."""

    where: str
    free_bytes: int
    host_bytes: int
    shared: bool
    devices: int | None = None


def room(config: Config) -> Room:
    """Of the hardware preset that the configuration names, or else of this machine."""
    hardware, host = config.hardware, available_bytes()
    if hardware.memory_bytes:
        devices = max(config.learner.ranks, config.schedule.learner_devices)
        free = int(hardware.memory_bytes)
        nodes = -(-devices // hardware.node_devices)
        host = int(nodes * hardware.host_memory_bytes) or free
        return Room(f"a device of {hardware.label}", free, host, False, devices)
    if config.learner.device == "cpu":
        return Room("this machine", host, host, True)
    import torch  # a GPU is asked for, and only torch knows it

    if not torch.cuda.is_available():
        raise UsageError(
            "learner.device=cuda: torch sees no GPU here; take learner.device=cpu, or name what is "
            "meant, such as hardware=8xh100"
        )
    return Room("the learner's GPU", torch.cuda.mem_get_info()[0], host, False)


@dataclass(frozen=True)
class Fit:
    """What a run takes, and what there is. `max_open_groups` is the largest that fits: 0 where not
    even one does, None where the schedule keeps no ledger."""

    footprint: Footprint
    room: Room
    fits: bool
    max_open_groups: int | None

    def report(self) -> dict[str, Any]:
        """Ready for JSON; bytes."""
        found = self.footprint
        return {
            "fits": self.fits,
            "where": self.room.where,
            "free_bytes": self.room.free_bytes,
            "needed_bytes": _needed(found, self.room),
            "learner_processes": found.processes,
            "learner_bytes": found.learner,
            "ledger_bytes": found.ledger,
            "offloaded_bytes": found.offloaded,
            "engine_bytes": found.engine,
            "open_groups": found.plan.open_groups,
            "largest_max_open_groups": self.max_open_groups,
        }


def _needed(found: Footprint, there: Room) -> int:
    """In the memory of `there`, of all that shares it."""
    if there.shared:
        return found.host_bytes()
    ledger = 0 if found.plan.storage == "host" else found.ledger // found.processes
    return sum(found.learner.values()) - PROCESS_BYTES + ledger


def _host_needed(found: Footprint) -> int:
    """In host memory, of learners that work elsewhere."""
    return found.offloaded + (found.ledger if found.plan.storage == "host" else 0)


def _fits(found: Footprint, there: Room) -> bool:
    if not there.shared and _host_needed(found) > there.host_bytes:
        return False
    return _needed(found, there) <= there.free_bytes


def fit(config: Config, size: PolicySize, there: Room | None = None) -> Fit:
    there = there or room(config)
    found = footprint(config, size, there.devices)
    most = None
    if found.plan.open_groups:
        # The set of those that fit is an interval from 1: memory grows with every open group.
        fitting = (_fits(found.with_open_groups(n + 1), there) for n in range(found.plan.groups))
        most = sum(1 for _ in itertools.takewhile(bool, fitting))
    return Fit(found, there, _fits(found, there), most)


def check(config: Config) -> None:
    """Raises UsageError, one line, for a run that will not fit. Silent where the policy's folder
    does not say how large it is: the learner looks again."""
    if config.agent.name != "policy" or config.clock.kind != "wall":
        return
    try:
        size = policy_size(resolve(config.policy.path or config.policy.name))
    except UsageError:
        return
    found = fit(config, size)
    if found.fits:
        return
    plan, footprint_ = found.footprint.plan, found.footprint
    asked = "null" if plan.max_open_groups is None else plan.max_open_groups
    raise UsageError(
        f"ledger.max_open_groups={asked}, ledger.form={plan.form}, "
        f"policy={config.policy.path or config.policy.name}: a learner of "
        f"{_gb(sum(footprint_.learner.values()))} ({_gb(footprint_.learner['activations'])} of it "
        f"activations), {_gb(footprint_.ledger)} of ledger for {plan.open_groups} open groups and "
        f"an engine of {_gb(sum(footprint_.engine.values()))} do not fit into the "
        f"{_gb(found.room.free_bytes)} that are free on {found.room.where}; take "
        + ", or ".join(_ways_out(config, size, found))
    )


def _ways_out(config: Config, size: PolicySize, found: Fit) -> Iterator[str]:
    """Settings that would fit, each alone."""
    offered = False
    if found.max_open_groups:
        offered = True
        yield f"ledger.max_open_groups={found.max_open_groups}"
    for key, value in (
        ("learner.gradient_checkpointing", True),
        ("learner.logits_tokens", 256),
        ("schedule.chunk_tokens", config.rollout.max_context_tokens),
        ("schedule.release", "group"),
    ):
        group, _, name = key.partition(".")
        other = copy.deepcopy(config)
        setattr(getattr(other, group), name, value)
        if fit(other, size, found.room).fits:
            offered = True
            yield f"{key}={str(value).lower()}"
    if not offered:
        yield "policy.lora.rank=8 (adapters alone have gradients), a smaller policy or more memory"


def _gb(size: int) -> str:
    return f"{size / 1e9:,.2f} GB"
