"""The shapes of policies that costs are computed for."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from harness.protocols import UsageError

FILE = Path(__file__).with_name("shapes.yaml")


@dataclass(frozen=True)
class Shape:
    """A decoder. `parameters` are all, `active_parameters` those a token meets; `layers` alone
    have an attention whose cost and cache grow with the context. Of a mixture of experts a token
    takes `experts_per_token` of `experts`, whose weights are parameters - `shared_parameters`."""

    name: str
    parameters: float
    active_parameters: float
    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    head_dim: int
    shared_parameters: float
    experts: int = 0
    experts_per_token: int = 0
    all_layers: int = 0  # with those of linear attention or state spaces
    sources: Mapping[str, str] | None = None

    @property
    def pair_flops(self) -> float:
        """Of one query with one key, forward, over all layers and heads: 2 for the score, 2 for
        the value, per element of a head."""
        return 4.0 * self.layers * self.heads * self.head_dim

    @property
    def cache_elements(self) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.key_value_heads * self.head_dim

    def weights_read(self, tokens: float) -> float:
        """Parameters that a step over so many tokens reads: every expert that one of them takes, if
        each takes any with the same probability."""
        if not self.experts:
            return self.parameters
        missed = (1 - self.experts_per_token / self.experts) ** tokens
        return self.shared_parameters + (self.parameters - self.shared_parameters) * (1 - missed)


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """shapes.yaml as it is, by name."""
    rows: Any = OmegaConf.to_container(OmegaConf.load(FILE))  # reads 27e9 as a number, as Hydra
    return rows


def shape(name: str) -> Shape:
    """Raises UsageError for a name that shapes.yaml does not have."""
    rows = table()
    if name not in rows:
        raise UsageError(
            f"hardware.shape={name}: no such policy shape; there is: {', '.join(sorted(rows))}"
        )
    row = dict(rows[name])
    row.setdefault("shared_parameters", row["parameters"])
    row.setdefault("active_parameters", row["parameters"])
    row.setdefault("all_layers", row["layers"])
    known = {f.name for f in fields(Shape)}
    return Shape(name=name, **{key: value for key, value in row.items() if key in known})
