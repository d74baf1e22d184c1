"""The rules that types cannot say, checked before anything starts. Torch-free."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from environments.sandbox.options import check_mirrors
from harness import continuation, hardware, schedule_rules, simulation
from harness.cluster import devices, pinning
from harness.cluster import select as clusters
from harness.config import Config, SandboxConfig, lookup
from harness.engines import select as engines
from harness.objectives import contradictions, exactness, offpolicy, opd
from harness.objectives.estimators import ESTIMATORS
from harness.policy import architecture, lora
from harness.policy.load import resolve
from harness.protocols import UsageError
from harness.teachers import select as teachers

CHOICES: dict[str, Sequence[str | None]] = {
    "schedule.release": (None, "batch", "group", "reward", "submit", "turn", "auto"),
    "schedule.placement": ("disaggregated", "colocated"),
    "schedule.queue": ("fifo", "freshest"),
    "schedule.stale_groups": ("wait", "drop", "keep"),
    "schedule.correction": offpolicy.NAMES,
    "schedule.correction_level": ("token", "sequence"),
    "agent.name": ("policy", "oracle", "nop"),
    "objective.name": ("grpo", "opd"),
    "objective.kl.estimator": ("k1", "k2", "k3"),
    "objective.kl.place": ("loss", "reward"),
    "objective.entropy.estimator": ("full", "sampled"),
    "objective.importance.kind": ("none", "truncate", "mask"),
    "objective.importance.level": ("token", "sequence"),
    "objective.clip.kind": tuple(contradictions.CLIP_SETTINGS),
    "objective.clip.form": (None, "token", "sequence"),
    "objective.clip.old_logprobs": ("same_forward", "engine"),
    "objective.advantage_mask": ("none", "positive", "negative"),
    "objective.dynamic_sampling": ("none", "filter", "refill"),
    "objective.normaliser_scope": ("batch", "micro_batch"),
    "policy.name": ("tiny", "smollm2", "hf", "simulated"),
    "teacher.name": ("torch", "recorded", "vllm"),
    "engine.name": ("torch", "vllm", "simulated"),
    "engine.device": ("cpu", "cuda"),
    "engine.dtype": ("float32", "bfloat16", "float16"),
    "learner.name": ("torch", "simulated"),
    "learner.device": ("cpu", "cuda"),
    "learner.parallel": ("ddp", "fsdp"),
    "learner.dtype": ("float32", "float64", "bfloat16"),
    "learner.packing": ("padded", "packed"),
    "learner.activations": ("device", "host"),
    "sandbox.kind": ("auto", "docker", "bubblewrap", "simulated"),
    "clock.kind": ("wall", "virtual"),
    "cluster.name": ("local", "ray"),
    "cluster.publication": ("auto", "folder", "object"),
    "budget.kind": ("updates", "trajectories", "tokens", "wall_clock_s", "device_s"),
    "ledger.form": ("auto", "affine", "bucket"),
    "ledger.dtype": ("float32", "float64", "bfloat16"),
    "ledger.storage": ("device", "host"),
    "segments.way": ("auto", "retain", "sweep"),
    "tracking.name": ("mlflow", "none"),
}
# key -> (lowest, highest, may the lowest itself be taken)
_RANGES: dict[str, tuple[float, float, bool]] = {
    "schedule.engine_devices": (1, math.inf, True),
    "schedule.learner_devices": (1, math.inf, True),
    "schedule.learning_rate": (0, math.inf, True),
    "schedule.chunk_tokens": (1, math.inf, True),
    "schedule.max_staleness": (0, math.inf, True),
    "schedule.concurrent_trajectories": (1, math.inf, True),
    # A fresh token's ratio is 1: it lies within every bound.
    "schedule.correction_low": (0, 1, False),
    "schedule.correction_high": (1, 1e6, True),
    "objective.epsilon": (0, math.inf, True),
    "objective.constant_tokens": (1, math.inf, True),
    "objective.top_k": (0, math.inf, True),
    "objective.discount": (0, 1, True),
    "objective.task_weight": (0, math.inf, True),
    "objective.kl.coefficient": (0, math.inf, True),
    "objective.entropy.coefficient": (0, math.inf, True),
    "objective.importance.low": (0, 1e6, False),
    "objective.importance.high": (0, 1e6, False),
    "objective.clip.low": (0, 1, True),
    "objective.clip.high": (0, math.inf, True),
    "objective.clip.dual": (1, math.inf, False),
    "objective.clip.bound": (0, math.inf, False),
    "objective.epochs": (1, math.inf, True),
    "objective.minibatches": (1, math.inf, True),
    "objective.router_balance": (0, math.inf, True),
    "learner.dropout": (0, 1, True),
    "rollout.groups_per_batch": (1, math.inf, True),
    "rollout.max_turns": (1, math.inf, True),
    "rollout.max_new_tokens": (1, math.inf, True),
    "rollout.max_context_tokens": (2, math.inf, True),
    "rollout.temperature": (0, math.inf, False),
    "rollout.time_limit_s": (0, math.inf, False),
    "rollout.retries": (0, math.inf, True),
    "rollout.history_turns": (1, math.inf, True),
    "rollout.tool_wait.median_s": (0, math.inf, True),
    "rollout.tool_wait.sigma": (0, 10, True),
    "teacher.devices": (1, math.inf, True),
    "teacher.sessions": (1, math.inf, True),
    "teacher.timeout_s": (0, math.inf, False),
    "teacher.wait_s": (0, math.inf, True),
    "engine.slots": (1, math.inf, True),
    "engine.replicas": (1, math.inf, True),
    "engine.tensor_parallel": (1, math.inf, True),
    "learner.ranks": (1, math.inf, True),
    "learner.logits_tokens": (0, math.inf, True),
    "learner.beta1": (0, 1, True),
    "learner.beta2": (0, 1, True),
    "learner.weight_decay": (0, math.inf, True),
    "learner.gradient_clip": (0, math.inf, False),
    "cluster.start_timeout_s": (0, math.inf, False),
    "sandbox.max_parallel": (1, math.inf, True),
    "sandbox.start_parallel": (1, math.inf, True),
    "sandbox.exec_parallel": (1, math.inf, True),
    "sandbox.verify_parallel": (1, math.inf, True),
    "sandbox.warm": (0, math.inf, True),
    "sandbox.time_to_live_s": (0, math.inf, False),
    "sandbox.disk_free_mb": (0, math.inf, True),
    "budget.limit": (0, math.inf, False),
    "evaluation.tasks": (1, math.inf, True),
    "evaluation.samples_per_task": (1, math.inf, True),
    "evaluation.temperature": (0, math.inf, True),
    "checkpoint.every": (0, math.inf, True),
    "checkpoint.keep": (1, math.inf, True),
    "ledger.max_open_groups": (1, math.inf, True),
    "ledger.bucket_cap": (2, math.inf, True),
    "segments.max_live_bytes": (0, math.inf, True),
    "segments.chunk_tokens": (1, math.inf, True),
    "parity.every": (0, math.inf, True),
    "parity.permutations": (1, math.inf, True),
    "policy.lora.rank": (0, math.inf, True),
    "policy.lora.alpha": (0, math.inf, False),
    "seed": (0, 2**63 - 1, True),
}
_FILES = ("replay", "teacher.path", "teacher.file", "policy.chat_template")
_TARGETS = ("schedule.target", "ledger.target", "segments.target")


def validate(config: Config, gpu_count: Callable[[], int] = hardware.gpu_count) -> None:
    """Raises UsageError, one line, for the first setting that cannot be run. Fills in what a
    virtual run's hardware says."""
    check_values(config)
    simulation.settle(config)
    opd.make(config.objective, config.rollout.group_size)  # says itself what it cannot be
    contradictions.check(config.objective)
    opd.check(config)
    exactness.check(config)
    if config.ledger.form == "affine" and not ESTIMATORS[config.objective.estimator].affine:
        raise UsageError(
            f"ledger.form=affine: the advantages of objective.estimator="
            f"{config.objective.estimator} are not affine in the reward; take ledger.form=bucket"
        )
    if config.rollout.max_new_tokens >= config.rollout.max_context_tokens:
        raise UsageError(
            f"rollout.max_new_tokens={config.rollout.max_new_tokens}: leaves no room for a prompt; "
            f"it must be below rollout.max_context_tokens={config.rollout.max_context_tokens}"
        )
    offpolicy.check(config)
    kl = config.objective.kl
    if config.replay is not None and kl.coefficient > 0 and kl.place == "reward":
        raise UsageError(
            "objective.kl.place=reward: a replay plays the recorded rewards as they are; take "
            "objective.kl.place=loss, or no replay"
        )
    _marks(config.evaluation.marks)
    _ranks(config)
    devices.check(config)
    clusters.check(config)
    _gpus(config, gpu_count)
    pinning.cores(config)  # says itself where they are not there
    _hosts(config.sandbox)
    check_mirrors(config.sandbox.mirrors)
    config.env.check()
    _exists("env.data_dir", getattr(config.env, "data_dir", None))  # not every environment has one
    for key in _FILES:
        _exists(key, lookup(config, key))
    if config.resume is not None and config.resume != continuation.AUTO:
        continuation.run_folder(config.resume)
    teachers.check(config)
    engines.check(config)
    if config.policy.path is not None:
        resolve(config.policy.path)
    if config.policy.name != "simulated" and config.agent.name == "policy":
        folder = resolve(config.policy.path or config.policy.name)
        architecture.check(folder, config.rollout.max_context_tokens)
        engines.check_policy(config, folder)
    lora.check(config.policy.lora)
    for key in _TARGETS:
        _importable(key, lookup(config, key))
    schedule_rules.check(config)


def check_trains(config: Config, command: str) -> None:
    """Raises UsageError for an agent that `command` cannot train."""
    if config.agent.name != "policy":
        raise UsageError(
            f"agent={config.agent.name}: {command} trains the policy; "
            "python -m harness.evaluate takes the other agents"
        )


def check_values(config: Config, prefix: str = "") -> None:
    """Choices and ranges of the keys that begin with `prefix`."""
    for key, choices in CHOICES.items():
        if key.startswith(prefix):
            _choice(key, lookup(config, key), choices)
    for key, (low, high, closed) in _RANGES.items():
        if key.startswith(prefix):
            _range(key, lookup(config, key), low, high, closed)


def _marks(marks: Sequence[float]) -> None:
    inside = all(0 < mark < 1 for mark in marks)
    if not inside or any(a >= b for a, b in itertools.pairwise(marks)):
        raise UsageError(
            f"evaluation.marks={list(marks)}: fractions of the budget, above 0 and below 1 and in "
            "increasing order, such as [0.25,0.5,0.75]; evaluation.final has the end"
        )


def _ranks(config: Config) -> None:
    """The rules of a learner in several processes."""
    learner, devices = config.learner, config.schedule.learner_devices
    if devices % learner.ranks:
        raise UsageError(
            f"learner.ranks={learner.ranks}: cannot share schedule.learner_devices={devices} "
            "evenly; take a divisor of it, or more devices"
        )
    if learner.device == "cuda" and devices != learner.ranks:
        raise UsageError(
            f"learner.device=cuda: a rank has one GPU; take learner.ranks={devices} for "
            f"schedule.learner_devices={devices}"
        )
    if learner.ranks == 1 and learner.parallel == "fsdp":
        raise UsageError("learner.parallel=fsdp: nothing to shard; take learner.ranks=2 or more")
    if learner.activations == "host" and not learner.gradient_checkpointing:
        raise UsageError(
            "learner.activations=host: only the inputs of layers that run again are held there; "
            "set learner.gradient_checkpointing=true, or take learner.activations=device"
        )
    if learner.activations == "host" and learner.device == "cpu":
        raise UsageError(
            "learner.activations=host: the memory of learner.device=cpu is the host's; take "
            "learner.activations=device"
        )
    if learner.ranks == 1 and config.ledger.sharded:
        raise UsageError("ledger.sharded=true: nothing to shard; take learner.ranks=2 or more")


def _gpus(config: Config, count: Callable[[], int]) -> None:
    """Of a run that learns on GPUs, before anything is looked for that only such a machine has. A
    Ray cluster that is joined has its own; of an engine alone on one, vLLM says it."""
    engine, learner = config.engine, config.learner
    if learner.device != "cuda" or config.cluster.address is not None:
        return
    needed = {
        "learner": learner.ranks,
        "engine": config.schedule.engine_devices if engine.device == "cuda" else 0,
    }
    wanted = sum(needed.values())
    if wanted <= (found := count()):
        return
    parts = " and ".join(f"{number} for the {name}" for name, number in needed.items() if number)
    keys = " ".join(f"{name}.device=cuda" for name, number in needed.items() if number)
    raise UsageError(
        f"{keys}: needs {wanted} GPUs ({parts}), this machine shows {found}; start it where there "
        "are as many, or try it out here with rehearsal=cpu (docs/gpu_presets.md)"
    )


def _hosts(sandbox: SandboxConfig) -> None:
    hosts, limits = list(sandbox.hosts), list(sandbox.host_parallel)
    for host in hosts:
        if not host.startswith(("unix:///", "tcp://")) or hosts.count(host) > 1:
            raise UsageError(
                f"sandbox.hosts={hosts}: {host} is no address of a Docker engine, or is there "
                "twice; write unix:///PATH or tcp://HOST:PORT"
            )
    if hosts and sandbox.kind == "bubblewrap":
        raise UsageError(
            f"sandbox.hosts={hosts}: sandbox.kind=bubblewrap runs on this machine alone; "
            "take sandbox=docker"
        )
    if limits and (len(limits) != len(hosts) or min(limits) < 1):
        raise UsageError(
            f"sandbox.host_parallel={limits}: give one limit of at least 1 for each of the "
            f"{len(hosts)} sandbox.hosts, or none at all"
        )


def _choice(key: str, value: Any, choices: Sequence[str | None]) -> None:
    if value not in choices:
        close = difflib.get_close_matches(str(value), [c for c in choices if c], n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        names = ", ".join("null" if c is None else c for c in choices)
        raise UsageError(f"{key}={value}: not available; there is: {names}{hint}")


def _range(key: str, value: float | None, low: float, high: float, closed: bool) -> None:
    if value is None:
        return
    inside = (low <= value if closed else low < value) and value <= high and math.isfinite(value)
    if not inside:
        bound = f"{'at least' if closed else 'above'} {low:g}"
        if high < math.inf:
            bound += f" and at most {high:g}"
        raise UsageError(f"{key}={value}: out of range; it must be {bound}")


def _exists(key: str, value: str | None) -> None:
    if value is not None and not Path(value).expanduser().exists():
        raise UsageError(f"{key}={value}: no such file or folder (looked from {Path.cwd()})")


def _importable(key: str, value: str) -> None:
    module, _, name = value.partition(":")
    try:
        found = bool(name) and importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise UsageError(f"{key}={value}: cannot be imported; write package.module:Name")


def keys(node: type | Any, prefix: str = "") -> list[str]:
    """Every dotted key of a config dataclass (type or instance)."""
    found: list[str] = []
    for part in dataclasses.fields(node):
        default = (
            part.default_factory()
            if part.default_factory is not dataclasses.MISSING
            else part.default
        )
        found.append(f"{prefix}{part.name}")
        if dataclasses.is_dataclass(default):
            found += keys(default, f"{prefix}{part.name}.")
    return found
