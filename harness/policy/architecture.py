"""How the engines serve a policy, read from its folder. Torch-free, so that what they cannot serve
is refused before anything starts.

Under engine=torch plain Llama and Qwen3 decoders go through a forward pass of this project's own,
which is fast (harness.policy.decoder); any other causal model goes through transformers' classes
(harness.policy.any_decoder), which is tried when it is loaded. engine=vllm takes the former alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.protocols import UsageError

_FAMILIES = ("llama", "qwen3")
# Rotary angles that depend on how long a pass is: a token's would change with those after it.
LENGTH_DEPENDENT = ("dynamic", "longrope")
_WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json",
    "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


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
        raw = raw_config(folder)
        rope: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        kind = raw.get("model_type")
        unsupported = {
            "model_type": str(kind) if kind not in _FAMILIES else None,
            "rope_type": rope_type(raw) if rope_type(raw) != "default" else None,
            "attention_bias": raw.get("attention_bias") or None,
            "mlp_bias": raw.get("mlp_bias") or None,
            "use_sliding_window": raw.get("use_sliding_window") or None,
            "hidden_act": raw["hidden_act"] if raw.get("hidden_act", "silu") != "silu" else None,
        }
        for key, value in unsupported.items():
            if value is not None:
                raise UsageError(
                    f"policy={folder}: {key}={value} is not served by the fused decoder, which "
                    f"computes plain decoders of the families {', '.join(_FAMILIES)}"
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
        _check_context(tokens, self.context)


def _check_context(tokens: int, positions: int) -> None:
    if tokens > positions:
        raise UsageError(
            f"rollout.max_context_tokens={tokens}: exceeds the policy's "
            f"max_position_embeddings={positions}; take at most that"
        )


def fused(folder: Path) -> bool:
    """Whether this project's own forward pass serves it; else transformers' classes do."""
    try:
        DecoderConfig.read(folder)
    except UsageError:
        return False
    return (folder / "model.safetensors").is_file()


def raw_config(folder: Path) -> dict[str, Any]:
    """A folder's config.json. Raises UsageError where there is none, or a GGUF file."""
    path = folder / "config.json"
    if folder.suffix == ".gguf":
        raise UsageError(
            f"policy={folder.name}: an engine serves Hugging Face folders, not a GGUF file; "
            f"python -m harness.policy.unpack policy={folder} out=FOLDER makes one, "
            "then policy=hf policy.path=FOLDER"
        )
    if not path.is_file():
        raise UsageError(f"policy={folder}: no config.json there; give a Hugging Face folder")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"policy={folder}: its config.json is no JSON ({error})") from error
    return raw


def rope_type(raw: Mapping[str, Any]) -> str:
    """Of a config.json; `default` where nothing is said."""
    rope: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return str(rope.get("rope_type", rope.get("type", "default")))


def check(folder: Path, context_tokens: int) -> None:
    """Raises UsageError, one line, for a policy that no engine here serves, as far as its
    folder says so."""
    raw = raw_config(folder)
    text: Mapping[str, Any] = raw.get("text_config") or raw
    if not raw.get("model_type"):
        raise UsageError(
            f"policy={folder}: its config.json names no model_type; give a causal language model "
            "as transformers saves it"
        )
    if raw.get("quantization_config"):
        raise UsageError(
            f"policy={folder}: quantization_config: quantised weights cannot be trained here; take "
            "the model's plain weights"
        )
    if rope_type(text) in LENGTH_DEPENDENT:
        raise UsageError(
            f"policy={folder}: rope_type={rope_type(text)}: a token's angles would change with how "
            "long its context is by now, and no log-probability would hold; take a model without"
        )
    contexts = [text[key] for key in _CONTEXT if isinstance(text.get(key), int)]
    if contexts:
        _check_context(context_tokens, contexts[0])
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise UsageError(f"policy={folder}: no weights there (such as {_WEIGHTS[0]})")
    if not (folder / "tokenizer.json").is_file():
        raise UsageError(
            f"policy={folder}: no tokenizer.json there; save the model with its fast tokenizer"
        )
