"""How a learner's passes are made: layers that run again, and trajectories side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from harness.policy.architecture import LENGTH_DEPENDENT
from harness.policy.attention import ATTENTION, Sequences, install
from harness.protocols import UsageError

if TYPE_CHECKING:
    from harness.learner.scoring import Scorer

_TOLERANCE = 1e-4  # of the hidden states' norm; rounding is below 1e-5, a wrong mask near 1
_TRIED = (5, 12)  # tokens of two sequences


def recompute(model: Any, on: bool, inputs: str = "device") -> None:
    """Gradient checkpointing: a layer keeps its input alone, on the device or in host memory, and
    runs again in the backward pass. Raises UsageError for a model that has none."""
    if not on:
        return
    if not model.supports_gradient_checkpointing:
        raise UsageError(
            f"learner.gradient_checkpointing=true: {type(model).__name__} has none in "
            "transformers; take false"
        )
    # transformers 5.19, which vLLM's environment has, knows it by the older name.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    # The reentrant kind wants inputs with a gradient, which frozen embeddings do not give.
    enable({"use_reentrant": False}, offload=inputs == "host")


def runs_again(model: Any) -> bool:
    """Whether layers of it do."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def lay_side_by_side(scorer: Scorer) -> None:
    """From now on the policy (and a reference) takes its sequences side by side. Raises UsageError
    for a model in which one would look at another; that is tried."""
    for model in (scorer.model, scorer.reference):
        if model is not None:
            _try(model)


def _try(model: Any) -> None:
    if model.config._attn_implementation == ATTENTION:
        return  # a learner before this one has tried it
    config = model.config.get_text_config()
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if kind in LENGTH_DEPENDENT:
        raise UsageError(
            f"learner.packing=packed: rope_type={kind}: angles depend on how long a row is; take "
            "learner.packing=padded"
        )
    weight = model.get_input_embeddings().weight
    draw = torch.Generator().manual_seed(0)
    window = getattr(config, "sliding_window", None) or 0
    lengths = [n + min(window, 512) for n in _TRIED]
    tokens = [
        torch.randint(0, config.vocab_size, (1, n), generator=draw).to(weight.device)
        for n in lengths
    ]
    with torch.no_grad():
        alone = [model.base_model(input_ids=t, use_cache=False)[0] for t in tokens]
        expected = torch.cat(alone, 1)
        try:
            install(model)
            beside = Sequences(lengths)
            got = model.base_model(
                input_ids=torch.cat(tokens, 1),
                position_ids=beside.positions(weight.device),
                use_cache=False,
                side_by_side=beside,
            )[0]
            wrong = float((got - expected).norm() / expected.norm())
        except (TypeError, AttributeError, RuntimeError, ValueError) as error:
            raise UsageError(_refused(model, str(error).splitlines()[0][:80])) from error
    if not wrong <= _TOLERANCE:
        raise UsageError(_refused(model, f"hidden states would be {wrong:.1g} of their size wrong"))


def _refused(model: Any, why: str) -> str:
    return (
        f"learner.packing=packed: {type(model).__name__} cannot take its sequences side by side "
        f"({why}); take learner.packing=padded"
    )
