"""vLLM inside its own environment's interpreter; imports nothing of the default installation.

The engine runs in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0): its usual second process would
take a second core. Answers need neither text nor, unless `for_training`, seeds and
log-probabilities: what training needs of an engine costs vLLM extra. No prefix is kept, as no two
prompts have one.
"""

from __future__ import annotations

import importlib
from typing import Any

from harness.serving.play import Progress
from harness.serving.requests import Request
from harness.serving.setting import Setting

# Read by vLLM at its import.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "HF_HUB_OFFLINE": "1",
}
STEP_TOKENS = 2048


class Vllm:
    compiled = for_training = False

    def __init__(self, setting: Setting) -> None:
        vllm: Any = importlib.import_module("vllm")
        torch: Any = importlib.import_module("torch")
        torch.set_num_threads(1)
        self._params = vllm.SamplingParams
        self._kinds: Any = importlib.import_module("vllm.sampling_params").RequestOutputKind
        self._engine = vllm.LLM(
            model=setting.policy, skip_tokenizer_init=True, dtype="float32", seed=0,
            max_model_len=setting.context, max_num_seqs=setting.slots,
            max_num_batched_tokens=STEP_TOKENS, enable_prefix_caching=False,
            enforce_eager=not self.compiled, disable_log_stats=True,
            generation_config="vllm",
        ).llm_engine  # fmt: skip
        self._heard: dict[str, int] = {}

    def add(self, request: Request) -> None:
        kind = self._kinds.DELTA if request.streamed else self._kinds.FINAL_ONLY
        params = self._params(
            max_tokens=request.new_tokens, min_tokens=request.new_tokens, ignore_eos=True,
            temperature=1.0, detokenize=False, output_kind=kind,
            seed=request.number if self.for_training else None,
            logprobs=0 if self.for_training else None,
        )  # fmt: skip
        name = str(request.number)
        self._heard[name] = 0
        self._engine.add_request(name, {"prompt_token_ids": request.prompt_T}, params)

    def step(self, progress: Progress) -> None:
        made, whole = 0, list[tuple[int, int]]()
        for output in self._engine.step():
            tokens = len(output.outputs[0].token_ids)
            made += tokens
            self._heard[output.request_id] += tokens
            if output.finished:
                whole.append((int(output.request_id), self._heard[output.request_id]))
        progress(made, whole)

    def forget(self) -> None:
        self._heard.clear()

    def close(self) -> None: ...


class VllmCompiled(Vllm):
    """Its model compiled, for which a C++ compiler has to be there; a first start takes minutes."""

    compiled = True


class VllmForTraining(Vllm):
    """With a seed for each request and the log-probability of each token, as engine=torch has."""

    for_training = True
