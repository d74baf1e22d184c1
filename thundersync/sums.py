"""A weighted sum of gradient buffers, and one look at whether it is finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import (
    _foreach_add_ as foreach_add_,  # pyright: ignore[reportPrivateImportUsage]
)
from torch import (
    _foreach_norm as foreach_norm,  # pyright: ignore[reportPrivateImportUsage]
)

from thundersync.storage import Buffers


def combine(terms: Sequence[tuple[float, Buffers]]) -> tuple[float, Buffers]:
    """The sum of coefficient x buffers as scale x buffers, in the place of the term with the
    largest coefficient: as many adds as adding each to a total, and one sum to look at."""
    scale, combined = max(terms, key=lambda term: abs(term[0]))
    for coefficient, buffers in terms:
        if buffers is not combined:
            foreach_add_(combined, buffers, alpha=coefficient / scale)
    return scale, combined


def finite(buffers: Buffers) -> bool:
    """One pass; a norm that overflows is no proof, and the elements are looked at."""
    if math.isfinite(float(torch.linalg.vector_norm(torch.stack(foreach_norm(buffers))))):
        return True
    return all(bool(b.isfinite().all()) for b in buffers)
