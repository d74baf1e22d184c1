"""Which decoders the engines serve, read from a policy's config.json. Torch-free, so that one
they cannot serve is refused before anything starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.protocols import UsageError

_FAMILIES = ("llama", "qwen3")


@dataclass(frozen=True)
class DecoderConfig:
    """The fields of a Hugging Face config.json that decide the forward pass."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    qk_norm: bool
    tied: bool
    context: int

    @staticmethod
    def read(folder: Path) -> DecoderConfig:
        """Raises UsageError for an architecture or option that is not computed here."""
        path = folder / "config.json"
        if folder.suffix == ".gguf":
            raise UsageError(
                f"policy={folder.name}: an engine serves Hugging Face folders, not a GGUF file; "
                f"python -m harness.policy.unpack policy={folder} out=FOLDER makes one, "
                "then policy=hf policy.path=FOLDER"
            )
        if not path.is_file():
            raise UsageError(f"policy={folder}: no config.json there; give a Hugging Face folder")
        raw = json.loads(path.read_text(encoding="utf-8"))
        rope: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        kind = raw.get("model_type")
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        unsupported = {
            "model_type": str(kind) if kind not in _FAMILIES else None,
            "rope_type": rope_type if rope_type != "default" else None,
            "attention_bias": raw.get("attention_bias") or None,
            "mlp_bias": raw.get("mlp_bias") or None,
            "use_sliding_window": raw.get("use_sliding_window") or None,
            "hidden_act": raw["hidden_act"] if raw.get("hidden_act", "silu") != "silu" else None,
        }
        for key, value in unsupported.items():
            if value is not None:
                raise UsageError(
                    f"policy={folder}: {key}={value} is not served by the engines here; take a "
                    f"plain decoder of the families {', '.join(_FAMILIES)}"
                )
        heads = raw["num_attention_heads"]
        return DecoderConfig(
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            layers=raw["num_hidden_layers"],
            heads=heads,
            kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            norm_eps=raw["rms_norm_eps"],
            rope_theta=rope.get("rope_theta", raw.get("rope_theta", 10000.0)),
            qk_norm=kind == "qwen3",
            tied=bool(raw.get("tie_word_embeddings", False)),
            context=raw["max_position_embeddings"],
        )

    def check_context(self, tokens: int) -> None:
        """Raises UsageError where a session of `tokens` has no positions."""
        if tokens > self.context:
            raise UsageError(
                f"rollout.max_context_tokens={tokens}: exceeds the policy's "
                f"max_position_embeddings={self.context}; take at most that"
            )


def check(folder: Path, context_tokens: int) -> None:
    """Raises UsageError, one line, for a policy that no engine here serves."""
    DecoderConfig.read(folder).check_context(context_tokens)
    for name in ("model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise UsageError(
                f"policy={folder}: no {name} there, which the engine reads; save the model "
                "unsharded and with its fast tokenizer"
            )
