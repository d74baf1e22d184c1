"""How engine=vllm starts vLLM: its arguments and environment variables. Imports neither vLLM nor
torch, so that a wrong setting is answered at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.policy.architecture import DecoderConfig

BACKEND = "published_file"  # the weight-transfer backend of harness.engines.vllm_worker
EXTENSION = "harness.engines.vllm_worker.Extension"
ONE_PROCESS = "harness.engines.vllm_executor.OneProcess"
SEVERAL_PROCESSES = "harness.engines.vllm_executor.SeveralProcesses"
BLOCK_TOKENS = 32  # of keys and values; only whole blocks are reused. Fewer are slow on a CPU
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class VllmOptions:
    """Of one replica. `threads` are those of each of its `tensor_parallel` processes on a CPU.
    `arguments` go to vLLM's AsyncEngineArgs after the engine's own."""

    path: str
    slots: int
    max_context: int
    threads: int = 1
    tensor_parallel: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: str = "float32"
    gpus: str | None = None  # its CUDA_VISIBLE_DEVICES
    arguments: Mapping[str, Any] = field(default_factory=dict)


# What harness.engines.vllm_engine relies on, and engine.arguments cannot change; with the key that
# does, where there is one.
OWN = {
    "model": "policy.path", "dtype": "engine.dtype", "max_num_seqs": "engine.slots",
    "max_model_len": "rollout.max_context_tokens", "skip_tokenizer_init": None,
    "logprobs_mode": None, "worker_extension_cls": None, "weight_transfer_config": None,
    "enable_prefix_caching": None, "seed": None, "disable_log_stats": None,
    "enable_log_requests": None, "load_format": None, "distributed_executor_backend": None,
    "tensor_parallel_size": "engine.tensor_parallel", "data_parallel_size": "engine.replicas",
    "pipeline_parallel_size": "engine.tensor_parallel",
}  # fmt: skip


def environment(options: VllmOptions) -> dict[str, str]:
    """Variables that must be set before vLLM is imported."""
    found = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "PYTHONWARNINGS": "ignore",  # standard error is the run's: of vLLM's imports, and its exit
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    if options.device == "cpu":
        found |= {
            # Model and scheduler in one process: a second one costs a core that is not there.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_USE_V2_MODEL_RUNNER": "0",
        }
        if options.arguments.get("enforce_eager", True):
            found["TORCH_COMPILE_DISABLE"] = "1"  # helpers of the sampler would be compiled still
    elif options.gpus is not None:
        found["CUDA_VISIBLE_DEVICES"] = options.gpus
    return found


def arguments(options: VllmOptions) -> dict[str, Any]:
    """Of vllm.AsyncEngineArgs. Log-probabilities are those of the distribution that is sampled from
    ("processed"), and prompts are tokens."""
    found: dict[str, Any] = {
        "model": options.path,
        "dtype": options.dtype,
        "max_model_len": options.max_context,
        "max_num_seqs": options.slots,
        "skip_tokenizer_init": True,
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": EXTENSION,
        "weight_transfer_config": {"backend": BACKEND},
        "enable_prefix_caching": True,
        "load_format": "safetensors",
        "use_tqdm_on_load": False,
        "seed": 0,
        "disable_log_stats": True,
        "enable_log_requests": False,
        "tensor_parallel_size": options.tensor_parallel,
        "distributed_executor_backend": ONE_PROCESS
        if options.tensor_parallel == 1
        else SEVERAL_PROCESSES,
        "generation_config": "vllm",  # none of the folder's own sampling settings
    }
    if options.device == "cpu":
        found |= {
            "enforce_eager": True,  # compiling takes longer than small models decode
            "block_size": BLOCK_TOKENS,
            "kv_cache_memory_bytes": cache_bytes(options),
            # A prompt is read whole: after a part of one vLLM 0.32 sets back the request's random
            # generator, which a CPU's cannot ("CPU Generator does not use offset").
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(2048, options.max_context),
        }
    return found | dict(options.arguments)


def cache_bytes(options: VllmOptions) -> int:
    """Keys and values of `slots` whole contexts, and as much again for sessions between turns: in
    each process, those of its own heads (of one that it shares, where there are fewer)."""
    config = DecoderConfig.read(Path(options.path))
    heads = max(1, config.kv_heads // options.tensor_parallel)
    token = 2 * config.layers * heads * config.head_dim * _DTYPE_BYTES[options.dtype]
    blocks = -(-options.max_context // BLOCK_TOKENS) + 1
    return 2 * options.slots * blocks * BLOCK_TOKENS * token
