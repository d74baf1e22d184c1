"""From a GGUF file to a Hugging Face folder that every engine reads:

    python -m harness.policy.unpack policy=smollm2 out=FOLDER

Weights are dequantised to float32 (four bytes a parameter); tokenizer and chat template come along.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness import entry
from harness.policy.load import load_for_training, resolve
from harness.protocols import UsageError


def parse(arguments: Sequence[str]) -> tuple[Path, Path]:
    """(GGUF file, new folder). Raises UsageError for anything else."""
    options = {"policy": "smollm2", "out": ""}
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in options:
            raise UsageError(f"{argument}: no such key; there is {', '.join(options)}")
        options[key] = value
    file, out = resolve(options["policy"]), Path(options["out"]).expanduser()
    if file.suffix != ".gguf":
        raise UsageError(f"policy={options['policy']}: a folder already, nothing to unpack")
    if not options["out"] or out.exists():
        raise UsageError(f"out={options['out']}: name a folder that does not exist yet")
    return file, out


def unpack(file: Path, out: Path) -> None:
    """Write config, weights, tokenizer and chat template to `out`."""
    import torch
    from transformers import AutoTokenizer

    model = load_for_training(file, torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model.save_pretrained(out, max_shard_size="1TB")  # one file: engine=torch reads no shards
    tokenizer.save_pretrained(out)


def main() -> int:
    def body() -> None:
        file, out = parse(sys.argv[1:])
        unpack(file, out)
        entry.closing_line({"policy": str(out)})

    return entry.guarded(body, __doc__)


if __name__ == "__main__":
    sys.exit(main())
