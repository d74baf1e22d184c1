"""How large a policy is, from its folder alone: config.json and the headers of its weights' files.
Torch-free, and nothing is loaded."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.policy.architecture import raw_config
from harness.protocols import UsageError

# Families whose MLP is one product, an activation, and one product; others have a gate beside.
LARGE_WEIGHT = 2**18  # elements; a cache does not hold it, so that a decoder keeps it twice
_COUNTED = ("llama", "qwen3", "qwen2", "mistral", "gpt_neox", "opt")
_LAYER = re.compile(r".*?\.\d+\.")
_UNGATED = ("gpt_neox", "gpt2", "opt", "phi", "bloom", "gptj", "codegen")


@dataclass(frozen=True)
class PolicySize:
    """`shapes` are those of the stored weights by name, a tied one once; the other numbers decide
    what a forward pass keeps for its backward (harness.footprint). `inner` is the MLP's width, of
    the experts that a token meets together. `counted`: what its family keeps was counted."""

    shapes: Mapping[str, tuple[int, ...]]
    vocabulary: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    gated: bool
    head_norms: bool
    counted: bool = True

    @property
    def parameters(self) -> int:
        return sum(map(math.prod, self.shapes.values()))

    @property
    def largest(self) -> int:
        """Elements of the largest weight."""
        return max(map(math.prod, self.shapes.values()))

    @property
    def in_layers(self) -> tuple[int, int]:
        """Elements of all that is in no layer, such as embeddings, and of the largest layer."""
        found = {"": 0}
        for name, shape in self.shapes.items():
            layer = _LAYER.match(name)
            key = layer.group() if layer else ""
            found[key] = found.get(key, 0) + math.prod(shape)
        return found.pop(""), max(found.values(), default=0)

    def adapters(self, rank: int, targets: Sequence[str]) -> int:
        """Parameters of low-rank adapters on the linear layers of these names."""
        return sum(
            rank * sum(shape)
            for name, shape in self.shapes.items()
            if len(shape) == 2 and name.split(".")[-2] in targets
        )


def policy_size(folder: Path) -> PolicySize:
    """Of a Hugging Face folder or a GGUF file. Raises UsageError where it does not say."""
    if folder.suffix == ".gguf":
        return _of_gguf(folder)
    raw = raw_config(folder)
    return of_config(raw.get("text_config") or raw, _safetensors(folder))


def of_config(raw: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> PolicySize:
    """Of a config.json's fields and its weights' shapes."""

    def first(*names: str) -> int:
        return next((int(raw[name]) for name in names if raw.get(name)), 0)

    hidden, heads = first("hidden_size", "n_embd"), first("num_attention_heads", "n_head")
    inner = first("moe_intermediate_size", "intermediate_size", "ffn_dim", "n_inner") or 4 * hidden
    kind = raw.get("model_type")
    return PolicySize(
        shapes=shapes,
        vocabulary=first("vocab_size"),
        layers=first("num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=first("num_key_value_heads") or heads,
        head_dim=first("head_dim") or hidden // max(heads, 1),
        inner=inner * (first("num_experts_per_tok", "experts_per_token") or 1),
        gated=kind not in _UNGATED,
        counted=kind in _COUNTED,
        head_norms=kind in ("qwen3", "qwen3_moe", "gemma3_text", "gemma3", "olmo2"),
    )


def _safetensors(folder: Path) -> dict[str, tuple[int, ...]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(
            f"policy={folder}: no .safetensors there, whose headers say how large it is; save the "
            "model anew with transformers"
        )
    return {name: shape for file in files for name, shape in _header(file)}


def _header(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > file.stat().st_size:
                raise ValueError("its header would be longer than the file")
            header = json.loads(opened.read(length))
        shapes = {n: tuple(e["shape"]) for n, e in header.items() if n != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"policy={file}: no .safetensors file, or a part of one ({error}); get it anew"
        ) from error
    yield from shapes.items()


def _of_gguf(file: Path) -> PolicySize:
    """Its tensors are named otherwise, but their shapes are the dequantised ones."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise UsageError(
            f"policy={file.name}: a GGUF file needs gguf; "
            "pip install -c constraints.txt -e '.[smollm2]'"
        ) from error
    reader = GGUFReader(file)
    found: dict[str, Any] = {}
    for key, field in reader.fields.items():
        if len(field.types) == 1:  # no lists: the vocabulary is long
            found[key.partition(".")[2]] = field.contents()
    shapes = {t.name: tuple(int(n) for n in reversed(t.shape)) for t in reader.tensors}
    fields = {
        "num_hidden_layers": found.get("block_count"),
        "hidden_size": found.get("embedding_length"),
        "intermediate_size": found.get("feed_forward_length"),
        "num_attention_heads": found.get("attention.head_count"),
        "num_key_value_heads": found.get("attention.head_count_kv"),
        "vocab_size": shapes["token_embd.weight"][0],
        "model_type": found.get("architecture"),
    }
    return of_config(fields, {_renamed(name): shape for name, shape in shapes.items()})


_GGUF_NAMES = {
    "attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj",
    "ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj",
}  # fmt: skip


def _renamed(name: str) -> str:
    for theirs, ours in _GGUF_NAMES.items():
        name = name.replace(f".{theirs}.", f".{ours}.")
    return name
