"""Which image an instance starts from: the record's, the official name, or a table's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from environments.protocols import UsageError


def official_image(instance_id: str) -> str:
    """The name that SWE-bench publishes an instance's image under (swebench.task.checks)."""
    name = f"swebench/sweb.eval.x86_64.{instance_id}:latest"
    return name.replace("__", "_1776_").lower()


def from_registry(image: str, registry: str) -> str:
    """The name to pull `image` by from `registry` (host:port), the image's own one replaced."""
    first, slash, rest = image.partition("/")
    has_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return f"{registry}/{rest if has_host else image}"


def read_image_table(path: str | None) -> Mapping[str, str]:
    """Instance -> image, from a JSON object in a file (`env.images`); empty without one."""
    if path is None:
        return {}
    try:
        table = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UsageError(
            f"env.images={path}: cannot be read ({reason}); it must be a JSON object that maps "
            "instance ids to image names"
        ) from error
    if not isinstance(table, dict):
        raise UsageError(f"env.images={path}: must map instance ids to image names")
    for name, image in table.items():
        if not isinstance(image, str) or not image.strip():
            raise UsageError(f"env.images={path}: {name!r} must be an image name, not {image!r}")
    return table
