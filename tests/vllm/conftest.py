"""Real vLLM on a CPU: one engine of each policy for a whole session, because a start is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.engines.torch_engine import TorchEngine
from harness.engines.vllm_client import VllmEngineClient
from harness.engines.vllm_options import VllmOptions
from harness.policy.load import load_for_training, resolve
from harness.policy.unpack import unpack
from harness.protocols import Completion, Generation

CONTEXT = 640


class Engine:
    """An engine that is driven from synchronous tests; `loop` runs its client."""

    def __init__(
        self, folder: Path, loop: asyncio.AbstractEventLoop, slots: int, tensor_parallel: int = 1
    ) -> None:
        self.folder, self._loop = folder, loop
        options = VllmOptions(str(folder), slots, CONTEXT, tensor_parallel=tensor_parallel)
        self.client = VllmEngineClient(options)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, 250))

    def generate(self, *requests: Generation) -> list[Completion]:
        async def together() -> list[Completion]:
            return await asyncio.gather(*(self.client.generate(r) for r in requests))

        return self.run(together())


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def _served(
    folder: Path, loop: asyncio.AbstractEventLoop, slots: int, tensor_parallel: int = 1
) -> Iterator[Engine]:
    engine = Engine(folder, loop, slots, tensor_parallel)
    try:
        loop.run_until_complete(engine.client.start())
        yield engine
    finally:
        loop.run_until_complete(engine.client.close())


@pytest.fixture(scope="session")
def tiny(loop: asyncio.AbstractEventLoop) -> Iterator[Engine]:
    yield from _served(resolve("tiny"), loop, 16)


@pytest.fixture(scope="session")
def halves(loop: asyncio.AbstractEventLoop) -> Iterator[Engine]:
    """The same policy in two processes, a half of its weights in each."""
    yield from _served(resolve("tiny"), loop, 16, tensor_parallel=2)


@pytest.fixture(scope="session")
def smollm2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2") / "unpacked"
    unpack(resolve("smollm2"), folder)
    return folder


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path, loop: asyncio.AbstractEventLoop) -> Iterator[Engine]:
    yield from _served(smollm2_folder, loop, 4)


@pytest.fixture(scope="session")
def moved() -> Callable[[Path, Path, int], Path]:
    """A file with the weights of a policy after a step, as a learner publishes them."""

    def make(folder: Path, out: Path, seed: int) -> Path:
        torch.manual_seed(seed)
        weights = load_file(folder / "model.safetensors")
        save_file({n: w + 0.05 * w.std() * torch.randn_like(w) for n, w in weights.items()}, out)
        return out

    return make


@pytest.fixture(scope="session")
def score() -> Callable[..., torch.Tensor]:
    """log-probabilities of tokens[start:] at a temperature by transformers in float32."""
    models: dict[Path, Any] = {}

    def scored(
        folder: Path,
        tokens: Sequence[int],
        start: int,
        temperature: float = 1.0,
        weights: Path | None = None,
    ) -> torch.Tensor:
        model = models.get(folder)
        if model is None:
            models.clear()
            model = models[folder] = load_for_training(folder, torch.float32).eval()
        file = weights or folder / "model.safetensors"
        model.load_state_dict(load_file(file), strict=False)
        model.tie_weights()
        with torch.inference_mode():
            logits = model(torch.tensor([tokens])).logits[0, start - 1 : -1]
        logprobs = (logits / temperature).log_softmax(-1)
        return logprobs.gather(1, torch.tensor(tokens[start:])[:, None])[:, 0]

    return scored


@pytest.fixture(scope="session")
def replayed() -> Callable[..., list[float]]:
    """The torch engine's log-probabilities of the same tokens, decoded one by one."""
    engines: dict[Path, TorchEngine] = {}

    def play(folder: Path, prompt: Sequence[int], made: Sequence[int], t: float) -> list[float]:
        if folder not in engines:
            engines.clear()
            engines[folder] = TorchEngine(str(folder), slots=1, max_context=CONTEXT)
        answers: list[Completion] = []
        request = Generation("r", prompt, len(made), t, 0, (), forced_T=made)
        engines[folder].generate(answers.append, request)
        while engines[folder].has_work():
            engines[folder].work()
        engines[folder].release("r")
        return answers[0].logprobs_T

    return play
