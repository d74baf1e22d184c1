"""The configuration: one dataclass per seam. Torch-free, so that a mistake is reported at once.

`Config` is the schema of configs/config.yaml. Units are in the names;
harness.validation holds the rules that types cannot say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from environments.simulated.workload_config import WorkloadConfig
from harness.costs.config import HardwareConfig


@dataclass
class ScheduleConfig:
    """When gradients are computed and when weights change; `target` names the class."""

    name: str = MISSING
    target: str = MISSING
    release: str | None = MISSING  # a rung of the ladder; null for schedules without one
    placement: str = "disaggregated"  # colocated: both take turns on the same devices
    engine_devices: int = 1  # threads on a CPU
    learner_devices: int = 1
    learning_rate: float = 3e-4
    # Of schedule=async (docs/asynchronous.md).
    max_staleness: int | None = None  # in learner versions; 0, without correction: sync
    partial_rollout: bool = False  # weights change in flight, between two tokens; or between turns
    queue: str = "fifo"  # finished first, trained first; freshest: of the newest weights first
    stale_groups: str = "wait"  # wait: never older than max_staleness; drop or keep what is
    concurrent_trajectories: int | None = None  # null: what engine and sandboxes hold
    # For stale data, harness/objectives/offpolicy.py; null bounds are the correction's own.
    correction: str | None = None
    correction_level: str = "token"
    correction_low: float | None = None
    correction_high: float | None = None
    chunk_tokens: int = 2048  # padded tokens per backward pass; measured best on a CPU core


@dataclass
class AgentConfig:
    """Who acts: the policy, the gold solution (oracle), or nobody (nop)."""

    name: str = "policy"


@dataclass
class KlConfig:
    """KL to the weights that training started from; `coefficient` 0 loads no reference. k2's
    gradient is that of KL(policy || reference), k3's that of KL(reference || policy); k1 is for the
    reward."""

    coefficient: float = 0.0
    estimator: str = "k2"
    place: str = "loss"


@dataclass
class EntropyConfig:
    """A bonus on the entropy at the scoring temperature, over the full vocabulary."""

    coefficient: float = 0.0
    estimator: str = "full"


@dataclass
class ImportanceConfig:
    """Detached weights from the ratio learner / engine, of a token or of the whole trajectory
    (product): truncate is min(ratio, high); mask is the ratio inside [low, high] and 0 outside."""

    kind: str = "none"
    level: str = "token"
    low: float | None = None
    high: float | None = None


@dataclass
class ClipConfig:
    """Bounds that `kind` does not use stay null. With `old_logprobs=same_forward` the ratio is 1
    and no clip is active; `form` says how GSPO meets per-token weights, `bound` is CISPO's largest
    ratio itself (not ratio - 1)."""

    kind: str = "none"
    low: float | None = None
    high: float | None = None
    dual: float | None = None
    bound: float | None = None
    form: str | None = None
    old_logprobs: str = "same_forward"


@dataclass
class OverlongConfig:
    """`mask` leaves trajectories that a limit ended out of the update; whether their rewards stay
    in the group's mean, and their tokens and sequences in the normaliser, is said apart."""

    mask: bool = False
    in_group_mean: bool = True
    in_normaliser: bool = True


@dataclass
class ObjectiveConfig:
    """What is maximised, in the terms of the mathematics note, sections 2, 4 and 5;
    docs/exactness.md says of every option whether it can be streamed exactly, and why.
    `top_k`, `discount` and `task_weight` are those of name=opd (docs/distillation.md)."""

    name: str = "grpo"
    top_k: int = 0  # of the teacher's tokens, for the reverse KL over them; 0: the sampled token's
    discount: float = 0.0  # of the log-ratios of later tokens; 0: none of them counts
    task_weight: float = 0.0  # of the group-relative advantages of the rewards; 0: no reward counts
    estimator: str = "mean_std_population"
    aggregation: str = "token_mean"
    epsilon: float = 1e-6
    constant_tokens: int = 512  # tokens a sequence is divided by under aggregation=constant
    kl: KlConfig = field(default_factory=KlConfig)
    entropy: EntropyConfig = field(default_factory=EntropyConfig)
    importance: ImportanceConfig = field(default_factory=ImportanceConfig)
    clip: ClipConfig = field(default_factory=ClipConfig)
    overlong: OverlongConfig = field(default_factory=OverlongConfig)
    advantage_mask: str = "none"
    dynamic_sampling: str = "none"  # filter: a degenerate group leaves the update altogether
    normaliser_scope: str = "batch"
    epochs: int = 1
    minibatches: int = 1
    router_balance: float = 0.0  # coefficient of a mixture-of-experts balance loss


@dataclass
class ToolWaitConfig:
    """Waited before every command of an agent, on top of what it takes to run: log-normal, drawn
    from the trajectory's seed and the turn, so that every schedule waits the same. For tasks whose
    commands are quicker than those they stand for; no wait by default."""

    median_s: float = 0.0
    sigma: float = 0.0


@dataclass
class RolloutConfig:
    group_size: int = 8
    groups_per_batch: int = 8
    max_turns: int = 10
    max_new_tokens: int = 32
    max_context_tokens: int = 640
    temperature: float = 1.0
    time_limit_s: float = 300.0
    retries: int = 2  # after infrastructure failures, with the same seed
    # The agent sees the task and so many of its last turns; null: all of them. Where turns are left
    # out its context is rewritten, and the trajectory has several sequences.
    history_turns: int | None = None
    tool_wait: ToolWaitConfig = field(default_factory=ToolWaitConfig)


@dataclass
class LoraConfig:
    """Low-rank adapters W + alpha/rank B A on the linear layers named `targets`, the only trainable
    weights; rank 0 trains every weight."""

    rank: int = 0
    alpha: float = 16.0
    dropout: float = 0.0  # only 0: a dropped unit would depend on the batching
    targets: list[str] = field(
        default_factory=lambda: [
            "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
        ]
    )  # fmt: skip


@dataclass
class PolicyConfig:
    """`path` is a Hugging Face folder, or the name of a model in the local Hugging Face cache; null
    takes the weights that `name` stands for. `chat_template` is a file that stands for the
    tokenizer's own chat template, or for one that it does not have."""

    name: str = "tiny"
    path: str | None = None
    chat_template: str | None = None
    lora: LoraConfig = field(default_factory=LoraConfig)


@dataclass
class TeacherConfig:
    """Who scores the policy's tokens under objective=opd. `path` is the folder of its weights, and
    of its tokenizer whoever it is; null takes what `policy` stands for. Settings that `name` does
    not use stay null."""

    name: str = "torch"
    policy: str = "tiny_teacher"
    path: str | None = None
    devices: int = 1  # threads of its process, which are none of the schedule's
    sessions: int = 64  # trajectories whose keys and values it keeps
    file: str | None = None  # of recorded: a trajectories.jsonl whose tokens a teacher has scored
    url: str | None = None  # of vllm: http://HOST:PORT, a server with prompt log-probabilities
    model: str | None = None  # of vllm: the server's name for it
    timeout_s: float = 60.0
    wait_s: float = 0.5  # before a turn is tried again; doubled each time


@dataclass
class EngineConfig:
    """`tensor_parallel`, `device`, `dtype` and `arguments` are name=vllm's (docs/vllm.md)."""

    name: str = "torch"
    slots: int = 64  # sequences that decode together
    # Processes that share schedule.engine_devices evenly. Of a simulated one: filled in, from the
    # hardware and its share of devices.
    replicas: int = 1
    tensor_parallel: int = 1  # processes of a replica that share its weights and its devices
    device: str = "cpu"  # cuda: one GPU per process; not verified on a GPU
    dtype: str = "float32"
    arguments: dict[str, Any] = field(default_factory=dict)  # of vllm.AsyncEngineArgs, as they are


@dataclass
class LearnerConfig:
    """`ranks` processes take whole trajectories each and share schedule.learner_devices evenly."""

    name: str = "torch"
    ranks: int = 1
    device: str = "cpu"  # cuda: one GPU per rank; not verified on a GPU
    parallel: str = "ddp"  # every rank holds all weights; fsdp: a shard of weights and ledgers
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    gradient_clip: float = 1.0
    dropout: float = 0.0  # the model's own rates are set to this
    # bfloat16 computes passes in it; weights, gradients, ledger and optimizer stay in float32.
    dtype: str = "float32"
    # Layers keep their inputs alone and run again in the backward pass: less memory, more time.
    gradient_checkpointing: bool = False
    # Where those inputs wait meanwhile: device, or host (not verified on a GPU).
    activations: str = "device"
    # Trajectories of one pass: rows of equal length, or one behind the other without padding.
    packing: str = "padded"
    # Logits of so many action tokens at a time, made again in the backward pass; 0: all.
    logits_tokens: int = 0


@dataclass
class SandboxConfig:
    """A sandbox's image and limits are its environment's. `warm` of each kind lately asked for are
    kept ready (null: a batch of trajectories with Docker, none with bubblewrap). `hosts` are Docker
    engines, unix:// or tcp:// (none: DOCKER_HOST's or the local one), of `host_parallel` sandboxes
    each, in their order (none: max_parallel). `mirrors`, NAME:PORT:ADDRESS, stand for hosts that
    a task allows, and are the only way to addresses that are not public."""

    kind: str = "auto"
    max_parallel: int = 64  # sandboxes alive at once: agents', verifiers' and warm ones
    start_parallel: int | None = None  # null, here and below: no limit of its own
    exec_parallel: int | None = None
    verify_parallel: int | None = None
    warm: int | None = None
    time_to_live_s: float = 600.0  # of an unused one
    hosts: list[str] = field(default_factory=list)
    host_parallel: list[int] = field(default_factory=list)
    disk_free_mb: int = 512  # at an engine's data root; nothing new starts below it
    mirrors: list[str] = field(default_factory=list)


@dataclass
class ClockConfig:
    kind: str = "wall"


@dataclass
class ClusterConfig:
    """`pin_cores` is of name=local; what follows is of name=ray (docs/ray.md)."""

    name: str = "local"
    pin_cores: bool = False
    address: str | None = None  # HOST:PORT of a cluster to join, or auto; null: one for this run
    # New weights reach engines by the run's folder or as one Ray object; auto: the folder where all
    # of them are on this machine.
    publication: str = "auto"
    start_timeout_s: float = 60.0  # for what was asked for to be there


@dataclass
class BudgetConfig:
    """What a run may spend on training; evaluation and warm start are outside."""

    kind: str = "updates"
    limit: float = 20.0


@dataclass
class EvaluationConfig:
    initial: bool = True
    final: bool = True
    tasks: int | None = None  # the first so many of the split; null is all of it
    samples_per_task: int = 2
    temperature: float = 1.0
    seed: int = 1234
    # Fractions of budget.limit, in order; the weights published next are kept and evaluated when
    # training has stopped (harness/snapshots.py).
    marks: list[float] = field(default_factory=list)
    keep_snapshots: bool = False


@dataclass
class LedgerConfig:
    """Where streamed gradients wait for their advantages; `target` names the class."""

    target: str = "thundersync.ledger:GradientLedger"
    form: str = "auto"
    # bfloat16 rounds every sum by up to 4e-3 of its size: half the memory, and no parity check
    # within its thresholds.
    dtype: str = "float32"
    storage: str = "device"  # host: pinned memory for a learner on a GPU; on a CPU both are one
    # The most distinct rewards of a group; null is rollout.group_size. Past it form=bucket is an
    # error; form=auto goes over to the affine form at a third, which needs less memory.
    bucket_cap: int | None = None
    sharded: bool = False  # over the learner's ranks; under fsdp it always is
    max_open_groups: int | None = None


@dataclass
class SegmentsConfig:
    """Turn gradients, for schedule.release=turn or auto (docs/turn_gradients.md); `target` names
    the class. `way` is the most that is held of a running trajectory: retain keeps its graphs,
    sweep its keys and values; auto keeps the graphs of turns long enough to be worth it, which is
    measured at start. Past `max_live_bytes` (null: half of the memory that is free at start) it
    falls back from retain to sweep, and from that to tokens alone, and says so."""

    target: str = "thundersync.segments:TurnGradients"
    way: str = "auto"
    max_live_bytes: int | None = None
    chunk_tokens: int = 512  # of a pass that runs turns again at the end


@dataclass
class ParityConfig:
    """Check streamed against synchronous gradients every so many updates; 0 is never."""

    every: int = 0
    permutations: int = 20  # of the control: synchronous updates with rows permuted


@dataclass
class CheckpointConfig:
    """A checkpoint every so many updates, as training begins and at its end; 0 is never
    (docs/checkpoints.md). The last `keep` are kept."""

    every: int = 0
    keep: int = 3


@dataclass
class TrackingConfig:
    """`uri` null is the SQLite file mlflow.db in the working directory; 'none' logs nowhere.
    `system_metrics`: the machine's load every ten seconds under `system/`. `traces`: so many of a
    run's first trajectories are logged turn by turn when it ends."""

    name: str = "mlflow"
    uri: str | None = None
    experiment: str = "thundersync"
    system_metrics: bool = True
    traces: int = 0


@dataclass
class Config:
    """One run. `env` is the environment's own dataclass; `replay` is a trajectories.jsonl whose
    tokens and timings are played back instead of sampled. `resume` is a run's folder, or one of its
    checkpoints, to go on from; auto: whatever lies in the run's own folder."""

    env: Any = MISSING
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    clock: ClockConfig = field(default_factory=ClockConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    ledger: LedgerConfig = field(default_factory=LedgerConfig)
    segments: SegmentsConfig = field(default_factory=SegmentsConfig)
    parity: ParityConfig = field(default_factory=ParityConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    resume: str | None = None
    replay: str | None = None
    seed: int = 0


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, leaf) pairs of a config dataclass, in order of declaration."""
    for part in dataclasses.fields(value):
        inner = getattr(value, part.name)
        key = f"{prefix}{part.name}"
        if dataclasses.is_dataclass(inner):
            yield from flatten(inner, f"{key}.")
        else:
            yield key, inner


def lookup(config: Any, key: str) -> Any:
    """The value behind a dotted key."""
    for part in key.split("."):
        config = getattr(config, part)
    return config
