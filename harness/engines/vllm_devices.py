"""The devices of engine=vllm: `engine.replicas` of `engine.tensor_parallel` processes each. Every
process has a GPU, or on a CPU an equal share of schedule.engine_devices as threads. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, cast

from harness.cluster.needs import engine_threads
from harness.config import Config
from harness.engines.vllm_options import VllmOptions
from harness.policy.architecture import DecoderConfig, raw_config
from harness.protocols import UsageError

_VOCABULARY = 64  # vLLM fills the vocabulary up to a multiple of it before it is shared


def check(config: Config) -> None:
    """Raises UsageError, one line, for devices that cannot be shared."""
    engine, devices = config.engine, config.schedule.engine_devices
    each, parallel = engine_threads(config), engine.tensor_parallel
    if engine.device == "cuda" and each != parallel:
        ways = f"engine.tensor_parallel={each}"
        if devices % parallel == 0:
            ways += f", or engine.replicas={devices // parallel}"
        raise UsageError(
            f"engine.device=cuda: schedule.engine_devices={devices} GPUs for engine.replicas="
            f"{engine.replicas} of engine.tensor_parallel={parallel}: a process has one; take "
            + ways
        )
    if each % parallel:
        raise UsageError(
            f"engine.tensor_parallel={parallel}: cannot share the {each} of "
            f"schedule.engine_devices={devices} that a replica has evenly; take a divisor of it, "
            "or more devices"
        )


def check_policy(config: Config, folder: Path) -> None:
    """Raises UsageError for one that vLLM does not serve in so many parts."""
    parallel, fitting = config.engine.tensor_parallel, list(_parts(folder))
    if parallel not in fitting:
        raise UsageError(
            f"engine.tensor_parallel={parallel}: the heads, MLP and vocabulary of policy="
            f"{config.policy.path or config.policy.name} cannot be shared by so many; take one of "
            + ", ".join(map(str, fitting))
        )


def _parts(folder: Path) -> Iterator[int]:
    """In how many its layers can be cut: whole heads, and equal parts of the rest."""
    config = DecoderConfig.read(folder)  # says itself what is not served
    inner = int(raw_config(folder).get("intermediate_size") or 0)
    vocabulary = -(-config.vocab_size // _VOCABULARY) * _VOCABULARY
    for parts in range(1, config.heads + 1):
        shared = config.kv_heads % parts == 0 or parts % config.kv_heads == 0
        if shared and not any(size % parts for size in (config.heads, inner, vocabulary)):
            yield parts


def options(config: Config, folder: Path, number: int = 0) -> VllmOptions:
    """What vLLM is started with, as the replica of this number."""
    engine = config.engine
    # On Ray an actor sees the GPUs of its bundle alone: there is nothing left to choose.
    choose = engine.device == "cuda" and config.cluster.name == "local"
    return VllmOptions(
        path=str(folder),
        slots=engine.slots,
        max_context=config.rollout.max_context_tokens,
        threads=engine_threads(config) // engine.tensor_parallel,
        tensor_parallel=engine.tensor_parallel,
        device=cast(Literal["cpu", "cuda"], engine.device),
        dtype=engine.dtype,
        gpus=_gpus(config, number) if choose else None,
        arguments=dict(engine.arguments),
    )


def _gpus(config: Config, number: int) -> str:
    """A replica's, of those that this process may use: the learner's come first."""
    learners = config.learner.ranks if config.learner.device == "cuda" else 0
    parallel = config.engine.tensor_parallel
    first = learners + number * parallel
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = seen.split(",") if seen else [str(n) for n in range(first + parallel)]
    if len(names) < first + parallel:
        raise UsageError(
            f"engine.device=cuda: CUDA_VISIBLE_DEVICES={seen} has no GPU left for "
            f"engine/{number} of engine.tensor_parallel={parallel} beside {first} that are taken "
            f"(learner.ranks={config.learner.ranks})"
        )
    return ",".join(names[first : first + parallel])
