"""Whether the ledger's worst case fits into the learner's memory, before any rollout starts.

Source: math.md section 2. Of an update the learner holds one total, one gradient in the making and,
per open group, min(distinct rewards, cap) buffers and what is pending; beside them what a backward
pass takes (harness.footprint). Not counted: the one tensor that an add with mixed dtypes widens on
a CPU. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.config import Config
from harness.objectives import opd
from harness.objectives.estimators import ESTIMATORS
from harness.protocols import UsageError

ITEM_BYTES = {"bfloat16": 2, "float32": 4, "float64": 8}
# learner.dtype: bfloat16 computes in it, and keeps weights and gradients in float32.
KEPT_BYTES = {"bfloat16": 4, "float32": 4, "float64": 8}
CAPTURES_EARLY = ("reward", "submit", "turn")  # auto climbs by the memory that it measures itself
# Of a parity check, in gradients: weights before and after two steps (3), two directions and the
# update that is set aside (3), a copy of Adam's state (2), one difference in float64 with its
# operands (6).
PARITY_COPIES = 14
_ADAM_STATES = 2  # made at the first step, when the check is long past


@dataclass(frozen=True)
class LedgerPlan:
    """What bounds a ledger. `buckets`: the most buffers that one group's rewards can fill.
    `max_open_groups` is None where nothing bounds them but the batch. Bytes are per element."""

    form: str
    storage: str
    release: str | None
    buckets: int
    groups: int
    group_size: int
    max_open_groups: int | None
    gradient_bytes: int
    stored_bytes: int
    always: bool
    parity: bool = False

    @property
    def open_groups(self) -> int:
        """How many groups may hold buffers at once."""
        if self.release not in CAPTURES_EARLY:
            return 0
        return min(self.groups, self.max_open_groups or self.groups)

    @property
    def pending_bytes(self) -> int:
        """A pending gradient is held in the narrower of its own dtype and the ledger's."""
        return min(self.gradient_bytes, self.stored_bytes)

    def ledger_bytes(self, elements: int, ranks: int = 1) -> int:
        """The most that the ledgers of `ranks` processes hold together, for buffers of `elements`
        each; a trajectory's gradient is whole on one of them."""
        return self.open_groups * self._group_bytes(self.buckets * ranks, ranks) * elements

    def _group_bytes(self, buckets: int, ranks: int) -> int:
        """Of one group, per element: k of its trajectories are committed, the others pending. Each
        rank that holds some of them has its own sum of the reward-independent terms."""
        size, extra = self.group_size, int(self.always)
        fewest = size if self.release == "reward" else 0
        return max(
            (min(k, buckets) + min(k, ranks) * extra) * self.stored_bytes
            + (size - k) * (1 + extra) * self.pending_bytes
            for k in range(fewest, size + 1)
        )

    def update_bytes(self, elements: int) -> int:
        """Of one process: the total in the wider dtype, a gradient in the making and, where it is
        narrowed, its narrow copy beside it."""
        terms = 2 if self.always else 1
        narrowed = self.pending_bytes if self.pending_bytes < self.gradient_bytes else 0
        total = max(self.gradient_bytes, self.stored_bytes)
        bench = PARITY_COPIES * self.gradient_bytes if self.parity else 0
        return elements * (total + terms * (self.gradient_bytes + narrowed) + bench)


def ledger_plan(config: Config) -> LedgerPlan:
    """The plan of a run's ledger."""
    ledger, rollout, objective = config.ledger, config.rollout, config.objective
    affine = ESTIMATORS[objective.estimator].affine
    few = ledger.form == "affine" or (ledger.form == "auto" and affine)
    cap = ledger.bucket_cap or rollout.group_size
    return LedgerPlan(
        form=ledger.form,
        storage=ledger.storage,
        release=config.schedule.release,
        buckets=2 if few else cap,
        groups=rollout.groups_per_batch,
        group_size=rollout.group_size,
        max_open_groups=ledger.max_open_groups,
        gradient_bytes=KEPT_BYTES[config.learner.dtype],
        stored_bytes=ITEM_BYTES[ledger.dtype],
        always=opd.make(objective, rollout.group_size).regularised,
        parity=config.parity.every > 0,
    )


@dataclass(frozen=True)
class LearnerMemory:
    """What the learner found once its model and optimizer were made. `parameters` are the trainable
    ones of a process, `buffer_elements` those of one ledger buffer; `processes` share the memory
    that is free. `sharded`: each keeps a shard of every gradient. `pass_bytes` is what a backward
    pass takes of activations and logits (harness.footprint)."""

    device: str
    free_bytes: int
    host_free_bytes: int
    parameters: int
    buffer_elements: int
    processes: int = 1
    sharded: bool = False
    pass_bytes: int = 0


def check(plan: LedgerPlan, memory: LearnerMemory) -> None:
    """Raises UsageError, one line with the figures and the way out, where the worst case does not
    fit."""
    if plan.open_groups == 0 or _fits(plan, memory):
        return
    own = _own_bytes(plan, memory)
    host = _on_host(plan, memory)
    where = "host" if host else f"learner's {memory.device}"
    free = memory.host_free_bytes if host else memory.free_bytes
    passes = ", activations" if memory.pass_bytes else ""
    raise UsageError(
        f"ledger.max_open_groups={_shown(plan.max_open_groups)}, ledger.form={plan.form}, "
        f"ledger.storage={plan.storage}: up to {plan.open_groups} open groups of "
        f"{plan.group_size} may hold {_mb(_ledger_bytes(plan, memory))} of ledger, beside "
        f"{_mb(own)} of total, gradient{passes} and optimizer; {_mb(free)} is free on the {where}; "
        + _way_out(plan, memory)
    )


def _on_host(plan: LedgerPlan, memory: LearnerMemory) -> bool:
    """Whether ledgers take another memory than the learner's own."""
    return plan.storage == "host" and memory.device != "cpu"


def _ledger_bytes(plan: LedgerPlan, memory: LearnerMemory) -> int:
    if memory.sharded:
        return memory.processes * plan.ledger_bytes(memory.buffer_elements)
    return plan.ledger_bytes(memory.buffer_elements, memory.processes)


def _own_bytes(plan: LedgerPlan, memory: LearnerMemory) -> int:
    states = _ADAM_STATES * memory.parameters * plan.gradient_bytes
    return memory.processes * (plan.update_bytes(memory.parameters) + states + memory.pass_bytes)


def _fits(plan: LedgerPlan, memory: LearnerMemory) -> bool:
    ledger, own = _ledger_bytes(plan, memory), _own_bytes(plan, memory)
    if _on_host(plan, memory):
        return ledger <= memory.host_free_bytes and own <= memory.free_bytes
    return ledger + own <= memory.free_bytes


def _way_out(plan: LedgerPlan, memory: LearnerMemory) -> str:
    """The settings that would fit, each alone."""
    found = []
    for count in range(plan.open_groups - 1, 0, -1):
        if _fits(replace(plan, max_open_groups=count), memory):
            found.append(f"ledger.max_open_groups={count}")
            break
    if plan.form == "bucket" and _fits(replace(plan, form="auto", buckets=2), memory):
        found.append("ledger.form=auto, where the advantages are affine in the reward")
    if memory.device != "cpu" and _fits(replace(plan, storage="host"), memory):
        found.append("ledger.storage=host")
    if plan.release in ("submit", "turn") and _fits(replace(plan, release="reward"), memory):
        found.append("schedule.release=reward")
    return f"take {', or '.join(found or ['schedule.release=group, which needs no ledger'])}"


def _shown(value: int | None) -> str:
    return "null" if value is None else str(value)


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
