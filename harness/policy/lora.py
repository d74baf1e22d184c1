"""Low-rank adapters (LoRA) on a policy, through peft; the engine never hears of them.

The adapters are injected into transformers' own model, so that everything that takes a causal
language model takes an adapted one. Published weights are plain: W + scale B A under W's own name.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.config import LoraConfig
from harness.protocols import UsageError

if TYPE_CHECKING:
    import torch

_ADAPTER = "default"
_EMBEDDINGS = ("lm_head", "embed_tokens")


@dataclass(frozen=True)
class Adapters:
    """What a learner is given; every rank draws the same A from `seed` (B starts at 0)."""

    rank: int
    alpha: float
    targets: Sequence[str]
    seed: int


def adapters(config: LoraConfig, seed: int) -> Adapters | None:
    """None where every weight is trained."""
    if config.rank == 0:
        return None
    return Adapters(config.rank, config.alpha, tuple(config.targets), seed)


def check(config: LoraConfig) -> None:
    """Raises UsageError for what cannot be trained. Torch-free."""
    if config.dropout != 0.0:
        raise UsageError(
            f"policy.lora.dropout={config.dropout}: dropout depends on how rows are batched, so "
            "that no streamed update could equal the synchronous one; leave it 0"
        )
    if config.rank == 0:
        return
    if not config.targets:
        raise UsageError("policy.lora.targets=[]: nothing to train; name linear layers, or rank=0")
    for name in _EMBEDDINGS:
        if name in config.targets:
            raise UsageError(
                f"policy.lora.targets={name}: adapters on embeddings would untie shared weights; "
                "name linear layers of the blocks, such as q_proj and v_proj"
            )
    if importlib.util.find_spec("peft") is None:
        raise UsageError(
            f"policy.lora.rank={config.rank}: needs the peft package; "
            "pip install -c constraints.txt -e '.[lora]'"
        )


def inject(model: Any, options: Adapters) -> None:
    """Adapt `model` in place: its own weights are frozen, the adapters start as identity. Raises
    UsageError for a target that the model does not have."""
    import torch
    from peft import LoraConfig as PeftConfig
    from peft import inject_adapter_in_model

    linear = {n.rpartition(".")[2] for n, m in model.named_modules() if type(m) is torch.nn.Linear}
    for target in options.targets:
        if target not in linear:
            raise UsageError(
                f"policy.lora.targets={target}: no linear layer of the policy; "
                f"there is: {', '.join(sorted(linear.difference(_EMBEDDINGS)))}"
            )
    config = PeftConfig(
        r=options.rank,
        lora_alpha=options.alpha,  # pyright: ignore[reportArgumentType]  # a float is only divided
        lora_dropout=0.0,
        target_modules=list(options.targets),
        bias="none",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        inject_adapter_in_model(config, model, _ADAPTER)


def plain_weights(model: Any) -> dict[str, torch.Tensor]:
    """The weights under the names that they have without adapters, these added in copies: training
    goes on undisturbed. A tied parameter is listed once."""
    weights = {
        name.replace(".base_layer.", "."): parameter.detach()
        for name, parameter in model.named_parameters()
        if ".lora_" not in name
    }
    for name, module in model.named_modules():
        if hasattr(module, "lora_A"):
            delta = module.get_delta_weight(_ADAPTER).detach()
            weights[f"{name}.weight"] = weights[f"{name}.weight"] + delta
    return {name: weight.contiguous() for name, weight in weights.items()}
