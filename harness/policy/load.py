"""Where a policy's folder is, and its trainable model."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.protocols import UsageError

if TYPE_CHECKING:
    import torch


def resolve(name_or_path: str | Path) -> Path:
    """The Hugging Face folder behind policy=tiny (bundled), policy=smollm2, or a path."""
    if str(name_or_path) == "tiny":
        return Path(str(resources.files("harness.policy"))) / "tiny"
    if str(name_or_path) == "smollm2":
        raise UsageError(
            "policy=smollm2: no converted weights here; unpack a SmolLM2-135M-Instruct folder "
            "and give it as policy=hf policy.path=FOLDER"
        )
    folder = Path(name_or_path)
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"policy={name_or_path}: neither tiny, smollm2 nor a folder with a config.json"
        )
    return folder


def load_for_training(path: str | Path, dtype: torch.dtype) -> Any:
    """transformers' own causal language model with sdpa attention, from a folder; no network."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # a learner's standard error is the run's
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation="sdpa", local_files_only=True
    )
