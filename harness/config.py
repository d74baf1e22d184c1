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


@dataclass
class ScheduleConfig:
    """When gradients are computed and when weights change; `target` names the class."""

    name: str = MISSING
    target: str = MISSING
    release: str | None = MISSING  # a rung of the ladder; null for schedules without one
    placement: str = "disaggregated"
    engine_devices: int = 1  # threads on a CPU
    learner_devices: int = 1
    learning_rate: float = 3e-4
    max_staleness: int | None = None
    correction: str | None = None
    partial_rollout: bool = False
    chunk_tokens: int = 2048  # padded tokens per backward pass; measured best on a CPU core


@dataclass
class AgentConfig:
    """Who acts: the policy, the gold solution (oracle), or nobody (nop)."""

    name: str = "policy"


@dataclass
class ObjectiveConfig:
    """What is maximised, in the terms of the mathematics note, sections 2 and 4."""

    name: str = "grpo"
    estimator: str = "mean_std_population"
    aggregation: str = "token_mean"
    epsilon: float = 1e-6
    constant_tokens: int = 512  # tokens a sequence is divided by under aggregation=constant


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


@dataclass
class PolicyConfig:
    """`path` is a folder in the policy's own format; null takes the bundled weights."""

    name: str = "tiny"
    path: str | None = None


@dataclass
class EngineConfig:
    name: str = "torch"
    slots: int = 64  # sequences that decode together


@dataclass
class LearnerConfig:
    name: str = "torch"
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    gradient_clip: float = 1.0
    dtype: str = "float32"


@dataclass
class SandboxConfig:
    """A sandbox's image and limits are its environment's."""

    kind: str = "auto"
    max_parallel: int = 64  # sandboxes alive at once: an agent's own, then its verifier's


@dataclass
class ClockConfig:
    kind: str = "wall"


@dataclass
class ClusterConfig:
    name: str = "local"
    pin_cores: bool = False


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


@dataclass
class LedgerConfig:
    """Where streamed gradients wait for their advantages; `target` names the class."""

    target: str = "thundersync.ledger:GradientLedger"
    form: str = "auto"
    dtype: str = "float32"
    storage: str = "device"
    max_open_groups: int | None = None


@dataclass
class ParityConfig:
    """Check streamed against synchronous gradients every so many updates; 0 is never."""

    every: int = 0


@dataclass
class HardwareConfig:
    """The label on every table row; null detects it."""

    label: str | None = None


@dataclass
class TrackingConfig:
    """`uri` null is the SQLite file mlflow.db in the working directory; 'none' logs nowhere."""

    name: str = "mlflow"
    uri: str | None = None
    experiment: str = "thundersync"


@dataclass
class Config:
    """One run. `env` is the environment's own dataclass; `replay` is a trajectories.jsonl whose
    tokens and timings are played back instead of sampled."""

    env: Any = MISSING
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    clock: ClockConfig = field(default_factory=ClockConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    ledger: LedgerConfig = field(default_factory=LedgerConfig)
    parity: ParityConfig = field(default_factory=ParityConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
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
