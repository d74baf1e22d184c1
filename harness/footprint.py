"""How much memory a run takes, before anything is loaded: the formula of docs/policies.md.

Of the learner: weights (and a frozen reference), the update's total and the gradient in the making,
the optimizer's states, the ledger's worst case (harness.memory), what a forward pass keeps for its
backward, and the logits. Of the engine: weights, keys and values. On a CPU both share a memory.
Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from harness.config import Config, LoraConfig
from harness.memory import CAPTURES_EARLY, ITEM_BYTES, KEPT_BYTES, LedgerPlan, ledger_plan
from harness.policy.size import LARGE_WEIGHT, PolicySize, policy_size
from harness.protocols import UsageError

PROCESS_BYTES = 450_000_000  # torch and transformers, imported; measured 400 to 450 MB
_ADAM_STATES = 2
# Of the logits at action positions: themselves, divided by the temperature, their softmax, and two
# gradients of them at a time.
_LOGITS = 5
_ON_THE_WAY = 2  # layers' inputs on the device while the others wait in host memory
_UNCOUNTED = 3 / 2  # of families that were not counted: their norms and biases keep more


@dataclass(frozen=True)
class Pass:
    """One backward pass: its tokens, those of them with logits, and how it is made."""

    tokens: int
    actions: int
    dtype: str = "float32"
    checkpointing: bool = False
    logits_tokens: int = 0
    offloaded: bool = False


def kept_bytes(size: PolicySize, made: Pass) -> int:
    """What a forward pass keeps for its backward, logits apart (docs/policies.md). Attention by
    scores (eager) takes more, which is not counted."""
    layer = _layer_bytes(size, made.dtype) * (1 if size.counted else _UNCOUNTED)
    inputs = size.hidden * KEPT_BYTES[made.dtype]
    if made.checkpointing:  # layers' inputs, one layer in full, and that layer's gradients
        held = _ON_THE_WAY if made.offloaded else size.layers
        return int(made.tokens * (held * inputs + 2 * layer + 3 * inputs))
    return int(made.tokens * (size.layers * layer + 3 * inputs))


def offloaded_bytes(size: PolicySize, made: Pass) -> int:
    """What waits for the backward pass in host memory (learner.activations=host)."""
    return made.tokens * size.layers * size.hidden * KEPT_BYTES[made.dtype] * made.offloaded


def _layer_bytes(size: PolicySize, dtype: str) -> int:
    """Of one token in one layer. A norm keeps its input and its normed input and hands on its
    output, which the linear layers keep; attention its rotated queries and keys, values and output;
    a gated MLP four tensors of its width."""
    kept, computed = KEPT_BYTES[dtype], ITEM_BYTES[dtype]
    queries, keys = size.heads * size.head_dim, size.kv_heads * size.head_dim
    norms = 2 * size.hidden * (2 * kept + computed)
    if dtype == "bfloat16":  # each linear layer keeps a rounded input of its own
        norms += 3 * size.hidden * computed
    attention = (3 * queries + 2 * keys) * computed
    if size.head_norms:
        attention += (queries + keys) * (2 * kept)
    mlp = (4 if size.gated else 2) * size.inner * computed
    return norms + attention + mlp


def logits_bytes(size: PolicySize, made: Pass) -> int:
    """Of a pass; in slices (learner.logits_tokens) one slice and its gradients."""
    held = min(made.actions, made.logits_tokens or made.actions)
    return _LOGITS * held * size.vocabulary * KEPT_BYTES[made.dtype]


def largest_pass(config: Config) -> Pass:
    """A chunk of schedule.chunk_tokens, or one trajectory alone where that is longer. Actions are
    the share that a whole trajectory of them has at most."""
    rollout = config.rollout
    tokens = max(config.schedule.chunk_tokens, rollout.max_context_tokens)
    share = min(1.0, rollout.max_turns * rollout.max_new_tokens / rollout.max_context_tokens)
    learner = config.learner
    return Pass(
        tokens,
        int(tokens * share),
        learner.dtype,
        learner.gradient_checkpointing,
        learner.logits_tokens,
        learner.activations == "host",
    )


@dataclass(frozen=True)
class Footprint:
    """Bytes by what they are for. `learner` is one process of it, `ledger` all processes' worst
    case and `offloaded` what all have in host memory during a pass; `processes` learners share a
    memory where they run on a CPU."""

    learner: dict[str, int]
    ledger: int
    offloaded: int
    engine: dict[str, int]
    processes: int
    plan: LedgerPlan
    trainable: int
    sharded: bool

    def learner_bytes(self) -> int:
        """Of one process, at its peak: a pass and the optimizer's step do not overlap, but what the
        step makes stays."""
        return sum(self.learner.values()) + self.ledger // self.processes

    def with_open_groups(self, count: int) -> Footprint:
        """The same with another ledger.max_open_groups."""
        plan = replace(self.plan, max_open_groups=count)
        return replace(self, plan=plan, ledger=_ledger(plan, self))

    def host_bytes(self) -> int:
        """Of all processes of a run whose learner works on a CPU."""
        return self.processes * sum(self.learner.values()) + self.ledger + sum(self.engine.values())


def _ledger(plan: LedgerPlan, of: Footprint) -> int:
    if of.sharded:
        return of.processes * plan.ledger_bytes(-(-of.trainable // of.processes))
    return plan.ledger_bytes(of.trainable, of.processes)


def footprint(config: Config, size: PolicySize, processes: int | None = None) -> Footprint:
    """Of a run with this policy; `processes` stands for learner.ranks."""
    learner, plan = config.learner, ledger_plan(config)
    ranks = processes or learner.ranks
    kept = KEPT_BYTES[learner.dtype]
    trainable = _trainable(config.policy.lora, size)
    total = size.parameters + (trainable if config.policy.lora.rank else 0)
    shards = ranks if learner.parallel == "fsdp" else 1
    made = largest_pass(config)
    rounded = 0
    if (
        learner.dtype == "bfloat16"
    ):  # a pass holds those that it multiplies with, or makes them again
        again = size.in_layers[1] + size.vocabulary * size.hidden
        rounded = 2 * (again if made.checkpointing else total)
    own = {
        "process": PROCESS_BYTES,
        "weights": total * kept // shards,
        "gathered weights": kept * _gathered(config, size, trainable) if shards > 1 else 0,
        "reference": total * kept if config.objective.kl.coefficient > 0 else 0,
        "rounded weights": rounded,
        "total and gradient": plan.update_bytes(-(-trainable // shards)),
        "largest gradient": min(size.largest, trainable) * kept,  # where tied, made twice
        "optimizer": _ADAM_STATES * trainable * kept // shards,
        "activations": kept_bytes(size, made),
        "logits": logits_bytes(size, made),
    }
    cells = config.engine.slots * (config.rollout.max_context_tokens + 1)
    copies = 3 if size.largest >= LARGE_WEIGHT else 2  # large ones in two layouts, while new ones
    serving = {  # are read
        "process": PROCESS_BYTES,
        "weights": copies * size.parameters * 4,
        "keys and values": cells * 2 * size.layers * size.kv_heads * size.head_dim * 4,
    }
    sharded = ranks > 1 and (config.ledger.sharded or learner.parallel == "fsdp")
    waiting = ranks * offloaded_bytes(size, made)
    found = Footprint(own, 0, waiting, serving, ranks, plan, trainable, sharded)
    return replace(found, ledger=_ledger(plan, found))


def _gathered(config: Config, size: PolicySize, trainable: int) -> int:
    """Elements that a rank under fsdp has beside its shards, at their peak: what is in no layer, a
    layer and the next one; the gradient of the largest of them and what peers sent of it; and,
    where gradients are captured, this rank's shard of every peer's."""
    outside, layer = size.in_layers
    captured = trainable if config.schedule.release in CAPTURES_EARLY else 0
    return outside + 2 * layer + 2 * min(trainable, max(outside, layer)) + captured


def pass_bytes(config: Config, policy: Path) -> int:
    """Of a backward pass: activations and logits; 0 for a policy whose folder does not say."""
    try:
        size = policy_size(policy)
    except UsageError:
        return 0
    made = largest_pass(config)
    return kept_bytes(size, made) + logits_bytes(size, made)


def _trainable(lora: LoraConfig, size: PolicySize) -> int:
    return size.adapters(lora.rank, lora.targets) if lora.rank else size.parameters
