"""What engine=vllm calls of vLLM by name; nothing else imports it but vLLM's own processes."""

from __future__ import annotations

from typing import Any

from vllm import AsyncEngineArgs, SamplingParams  # pyright: ignore[reportMissingImports]
from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
    WeightTransferUpdateRequest,
)
from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]
from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]
from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]

from harness.engines.vllm_options import VllmOptions, arguments
from harness.protocols import Generation, UsageError


def start(options: VllmOptions) -> Any:
    """An AsyncLLM. Raises UsageError for an argument that vLLM does not have, and for a vLLM that
    was built for another device."""
    if current_platform.device_type != options.device:
        raise UsageError(
            f"engine.device={options.device}: the vLLM that is installed here runs on "
            f"{current_platform.device_type or 'no device of this machine'}"
        )
    try:
        made = AsyncEngineArgs(**arguments(options))
    except TypeError as error:
        raise UsageError(f"engine.arguments={dict(options.arguments)}: {error}") from None
    return AsyncLLM.from_engine_args(made)


def sampling(request: Generation, seed: int) -> SamplingParams:
    """From the whole distribution at the request's temperature; one output, when it has ended."""
    return SamplingParams(
        temperature=request.temperature,
        seed=seed,
        max_tokens=request.max_new_tokens,
        stop_token_ids=list(request.stop_tokens),
        ignore_eos=True,
        logprobs=0,  # the sampled token's alone
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def transfer(path: str) -> WeightTransferUpdateRequest:
    """For harness.engines.vllm_worker.FileTransfer."""
    return WeightTransferUpdateRequest(update_info={"path": path})
