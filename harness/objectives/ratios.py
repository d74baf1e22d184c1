"""How far an update's tokens were from the policy that learnt from them. Torch-free: ranks send
their sums to the main process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any


@dataclass(frozen=True)
class RatioSums:
    """Over the action tokens that were scored for an update: how many, the sum of their ratios
    proximal / behaviour (of their trajectories at sequence level), sum and squares of the weights
    that importance kind and bounds made of them, how many were truncated or masked, and the largest
    ratio. A ratio above e^20 counts as e^20."""

    tokens: float
    ratio: float
    weight: float
    weight_squared: float
    outside: float
    largest: float

    def __add__(self, other: RatioSums) -> RatioSums:
        *sums, largest = zip(astuple(self), astuple(other), strict=True)
        return RatioSums(*(a + b for a, b in sums), largest=max(largest))

    def columns(self) -> dict[str, float]:
        """Cells of updates.csv. The effective sample is (sum w)^2 / sum w^2, as a share of the
        tokens: 1 where all weights are equal, 0 where all are masked."""
        effective = self.weight**2 / self.weight_squared if self.weight_squared else 0.0
        values = (
            self.ratio / self.tokens,
            self.largest,
            self.outside / self.tokens,
            effective / self.tokens,
        )
        return dict(zip(COLUMNS, values, strict=True))


COLUMNS = ("ratio_mean", "ratio_max", "ratio_outside_fraction", "effective_sample_fraction")


def merged(parts: Iterable[RatioSums | None]) -> RatioSums | None:
    """Of several ranks; None where none of them measured a token."""
    measured = [part for part in parts if part is not None]
    return sum(measured[1:], measured[0]) if measured else None


def columns(ratios: RatioSums | None) -> dict[str, Any]:
    """The same cells, empty for an update without importance weights."""
    return dict.fromkeys(COLUMNS) if ratios is None else ratios.columns()
