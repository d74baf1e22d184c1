"""transformers' continuous batching, through its manager; the model steps in a thread of its own.

Chosen for it, against its defaults: a cache for what is asked for and not for most of the machine's
memory, as many prompt tokens a step as engine=torch reads, no sharing of prefixes (no two prompts
have one) and no graphs.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import torch

from harness.policy.load import load_for_training
from harness.serving.play import Progress
from harness.serving.requests import Request
from harness.serving.setting import Setting

PAGE, STEP_TOKENS = 32, 512


class Continuous:
    def __init__(self, setting: Setting) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        torch.set_num_threads(1)
        logging.getLogger("transformers").setLevel(logging.ERROR)
        model: Any = load_for_training(setting.policy, torch.float32).eval()
        pages = math.ceil((setting.context + 1) / PAGE)
        with torch.inference_mode():
            self._manager = model.init_continuous_batching(
                generation_config=GenerationConfig(
                    max_new_tokens=setting.context, do_sample=True, temperature=1.0, top_k=0,
                    top_p=1.0, eos_token_id=-1, pad_token_id=0,
                ),
                continuous_batching_config=ContinuousBatchingConfig(
                    page_size=PAGE,
                    num_blocks=setting.slots * pages,
                    max_batch_tokens=STEP_TOKENS,
                    max_requests_per_batch=setting.slots,
                    allow_block_sharing=False,
                    use_async_batching=False,
                    use_cuda_graph=False,
                ),
            )  # fmt: skip
            self._manager.start()
        self._heard: dict[str, int] = {}

    def add(self, request: Request) -> None:
        self._manager.add_request(
            request.prompt_T, str(request.number), request.new_tokens, streaming=request.streamed
        )
        self._heard[str(request.number)] = 0

    def step(self, progress: Progress) -> None:
        result = self._manager.get_result(timeout=60)
        if result is None or result.error:
            raise RuntimeError(f"continuous batching: {result and result.error}")
        tokens = len(result.generated_tokens)
        made = tokens - self._heard[result.request_id]
        self._heard[result.request_id] = tokens
        whole = [(int(result.request_id), tokens)] if result.is_finished() else []
        progress(made, whole)

    def forget(self) -> None:
        self._heard.clear()

    def close(self) -> None:
        self._manager.stop(hard_stop=True)
