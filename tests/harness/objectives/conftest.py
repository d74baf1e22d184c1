"""A config of overrides, and a small float64 policy whose numbers stay in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.composition import compose
from harness.config import Config, lookup
from harness.learner.torch_learner import TorchLearner
from harness.parts import learner_options
from thundersync.true_norms import use_true_norms


def override(config: Config, overrides: Mapping[str, Any]) -> Config:
    """A copy of `config` with dotted keys set; each must exist."""
    config = copy.deepcopy(config)
    for key, value in overrides.items():
        where, _, name = key.rpartition(".")
        node = lookup(config, where)
        assert hasattr(node, name), key
        setattr(node, name, value)
    return config


@pytest.fixture(scope="session")
def configure() -> Callable[[Mapping[str, Any]], Config]:
    """Overrides of the default configuration -> Config."""
    base = compose(["tracking=none"])
    return lambda overrides: override(base, overrides)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of a one-layer Qwen3 with 48 tokens."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=48, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, intermediate_size=48, tie_word_embeddings=True,
        attention_dropout=0.5,
    )  # fmt: skip
    where = tmp_path_factory.mktemp("policy")
    Qwen3ForCausalLM(config).save_pretrained(where)
    return where


@pytest.fixture(scope="session")
def reference(folder: Path) -> Any:
    """The weights training starts from, as transformers loads them; in evaluation mode."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="sdpa"
    )
    use_true_norms(model)
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def policy(reference: Any) -> Any:
    """The weights after some training: the reference and noise."""
    model = copy.deepcopy(reference).requires_grad_(True)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(noise, alpha=0.15)
    return model


@pytest.fixture(scope="session")
def service(policy: Any, reference: Any, folder: Path, tmp_path_factory: Any):
    """A learner that started from the reference's weights and has come to the policy's."""

    def make(config: Config) -> TorchLearner:
        learner = TorchLearner(
            **learner_options(config, folder, tmp_path_factory.getbasetemp()),
            model=copy.deepcopy(reference).requires_grad_(True),
        )
        learner.model.load_state_dict(policy.state_dict())
        return learner

    return make
