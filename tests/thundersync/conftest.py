"""Small random policies of both families, once per session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

VOCABULARY = 128
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 96, "tie_word_embeddings": True,
}  # fmt: skip


def _save(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    return _save(Qwen3ForCausalLM(Qwen3Config(**_SHAPE)), tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return _save(LlamaForCausalLM(LlamaConfig(**_SHAPE)), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def policy(qwen3: Path) -> Path:
    """The one that a test of the schedules takes, which does not care."""
    return qwen3
