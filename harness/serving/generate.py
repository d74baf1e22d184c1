"""transformers' `generate` on padded batches: all that have arrived, up to `slots`, until the
longest of them is done; who comes meanwhile waits for the next batch."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from harness.policy.load import load_for_training
from harness.serving.play import Progress
from harness.serving.requests import Request
from harness.serving.setting import Setting


class _Steps(BaseStreamer):
    """Is told of every step of a batch. An answer is whole, and read, before its batch ends."""

    def __init__(self, batch: list[Request], progress: Progress) -> None:
        self._progress, self._batch = progress, batch
        self._step = -1  # the first thing told of is the prompt

    def put(self, value: torch.Tensor) -> None:
        self._step += 1
        if self._step:
            needed = [r for r in self._batch if r.new_tokens >= self._step]
            whole = [(r.number, self._step) for r in needed if r.new_tokens == self._step]
            self._progress(len(needed), whole)

    def end(self) -> None: ...


class Generate:
    def __init__(self, setting: Setting) -> None:
        torch.set_num_threads(1)
        self._model: Any = load_for_training(setting.policy, torch.float32).eval()
        self._model.generation_config.eos_token_id = None  # every answer has its full length
        self._slots = setting.slots
        self._waiting: deque[Request] = deque()

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    @torch.inference_mode()
    def step(self, progress: Progress) -> None:
        from transformers import GenerationConfig

        size = min(len(self._waiting), self._slots)
        batch = [self._waiting.popleft() for _ in range(size)]
        width = max(len(r.prompt_T) for r in batch)
        tokens = torch.zeros((size, width), dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, request in enumerate(batch):
            tokens[row, width - len(request.prompt_T) :] = torch.tensor(request.prompt_T)
            mask[row, width - len(request.prompt_T) :] = 1
        self._model.generate(
            tokens,
            attention_mask=mask,
            generation_config=GenerationConfig(
                max_new_tokens=max(r.new_tokens for r in batch),
                do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                pad_token_id=0,
            ),
            streamer=_Steps(batch, progress),
        )  # fmt: skip

    def forget(self) -> None: ...

    def close(self) -> None: ...
