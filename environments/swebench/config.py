"""Settings of env=swebench. Torch-free, so that a mistake is reported at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SweBenchConfig:
    """`dataset` is mini (bundled) or pypi (built from source distributions); `data_dir` null takes
    the bundled data."""

    name: str = "swebench"
    dataset: str = "mini"
    split: str = "train"
    eval_split: str = "eval"
    data_dir: str | None = None
    agent_prompt: str = "auto"
    command_timeout_s: float = 10.0
    verify_timeout_s: float = 60.0
