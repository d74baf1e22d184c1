"""The reward files of the format: /logs/verifier/reward.json, else /logs/verifier/reward.txt."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

MAX_BYTES = 1 << 20


def parse_reward(
    json_file: bytes | None, text_file: bytes | None
) -> tuple[float, Mapping[str, float]]:
    """The reward and the other numbers beside it; None is a file that is not there.

    As in the reference reader, reward.json is an object of numbers (others are ignored) and comes
    first; where it has no "reward", reward.txt gives it. Stricter: a reward that is not finite, and
    anything that is no number, raises ValueError with the reason.
    """
    metrics: dict[str, float] = {}
    if json_file is not None:
        metrics = _object(json_file)
        if "reward" in metrics:
            return metrics.pop("reward"), metrics
    if text_file is None:
        raise ValueError('reward.json has no "reward"' if metrics else "no reward file")
    return _number(text_file), metrics


def _number(content: bytes) -> float:
    text = content.decode("utf-8", "replace").strip()
    if not text:
        raise ValueError("reward.txt is empty")
    try:
        reward = float(text)
    except ValueError:
        raise ValueError(f"reward.txt holds {text[:40]!r}, not one number") from None
    if not math.isfinite(reward):
        raise ValueError(f"reward.txt holds {text}, which is not finite")
    return reward


def _object(content: bytes) -> dict[str, float]:
    if not content.strip():
        raise ValueError("reward.json is empty")
    try:
        found: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"reward.json is no JSON: {str(error)[:80]}") from None
    if not isinstance(found, dict):
        raise ValueError("reward.json is no object")
    numbers = {
        key: value
        for key, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    for key, value in numbers.items():
        if not math.isfinite(value):
            raise ValueError(f"reward.json: {key} is not finite")
    return {key: float(value) for key, value in numbers.items()}
