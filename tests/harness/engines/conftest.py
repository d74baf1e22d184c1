"""A small random policy, once per session, and ways to run the engine inside the test's process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.engines.torch_engine import TorchEngine
from harness.protocols import Completion, Generation


def save_random_policy(folder: Path, seed: int) -> None:
    import torch
    import transformers

    torch.manual_seed(seed)
    config = transformers.Qwen3Config(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=128,
        tie_word_embeddings=True, initializer_range=0.4,
    )  # fmt: skip
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random-policy")
    save_random_policy(folder, seed=1)
    return folder


@pytest.fixture(scope="session")
def other_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other-policy")
    save_random_policy(folder, seed=2)
    return folder


@pytest.fixture(scope="session")
def reference(policy: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(policy).eval()


@pytest.fixture
def complete() -> Callable[..., list[Completion]]:
    """Run requests that arrive together; the completions in the requests' order."""

    def run(engine: TorchEngine, *generations: Generation) -> list[Completion]:
        done: dict[str, Completion] = {}
        for generation in generations:
            engine.generate(lambda c, name=generation.session: done.update({name: c}), generation)
        while engine.has_work():
            engine.work()
        return [done[generation.session] for generation in generations]

    return run
