"""The small statistics that a run prints about itself."""

from __future__ import annotations

import math


def binomial_standard_error(rate: float, samples: int) -> float:
    """Standard error of a rate over independent samples."""
    return math.sqrt(max(0.0, rate * (1.0 - rate)) / samples)
