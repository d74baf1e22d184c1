"""Weights, gradients, optimizer states and ledgers in shards over the ranks (FSDP2).

A forward or backward gathers one layer's weights at a time and is an act of all ranks; each brings
rows of its own, or a row that counts for nothing. The exchange inside a backward hands every rank
its shard of each rank's gradient, apart from one another: trajectories of different groups share a
backward, and a ledger still gets them one by one. Gradients are summed, not averaged. What a rank
waits for its peers inside a pass counts as busy: from outside, it cannot be told apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import (
    _foreach_norm as foreach_norm,  # pyright: ignore[reportPrivateImportUsage]
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from harness.learner import ranks
from harness.learner.client import ScoredTokens
from harness.learner.gradients import Buffers, Captured, Replicated, Total
from harness.learner.placement import Placement
from harness.learner.scoring import Score, Scorer
from harness.policy import lora

# Scored where a rank has no row, so that its peers do not wait; its gradient is multiplied by 0.
_IDLE = ScoredTokens("idle", -1, 0.0, [0, 0], [0, 1], [0.0, 0.0])


class _Root(nn.Module):
    """Gives FSDP one forward around whatever is computed with the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


class _Exchange:
    """FSDP's reduce-scatter of one layer's gradients (the interface of its custom reduce-scatter),
    which also keeps each rank's part where they are wanted `apart`. `summed` and `received` are
    flat shards."""

    def __init__(self) -> None:
        self.summed: torch.Tensor | None = None
        self.received: Buffers = []
        self.apart = False

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        received = ranks.exchange(input_tensor)
        output_tensor.copy_(received[0])
        for part in received[1:]:
            output_tensor.add_(part)
        self.summed, self.received = output_tensor, received if self.apart else []

    def take(self) -> tuple[torch.Tensor, Buffers] | None:
        """Give away what the last backward left; None where the layer trains nothing."""
        taken = None if self.summed is None else (self.summed, self.received)
        self.summed, self.received = None, []
        return taken


@dataclass(frozen=True)
class _View:
    """Where a parameter's shard lies in the flat shards."""

    flat: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class FullySharded(Replicated):
    """A shard of everything on every rank. Buffers of totals and ledgers are flat, one per layer
    and one for the rest."""

    joint = True

    def __init__(self, scorer: Scorer, placement: Placement, dtype: torch.dtype) -> None:
        super().__init__(scorer, placement, dtype)
        self._idle = _IDLE if scorer.distillation is None else scorer.distillation.neutral(_IDLE)
        model = scorer.model
        mesh = init_device_mesh(self.parameters[0].device.type, (placement.ranks,))
        kinds = model._no_split_modules or ()
        self._layers = [n for n, m in model.named_modules() if type(m).__name__ in kinds]
        for name in self._layers:
            fully_shard(model.get_submodule(name), mesh=mesh)
        # Left gathered after a forward without a backward, weights would be stale after a step.
        self._root = _Root(model)
        fully_shard(self._root, mesh=mesh, reshard_after_forward=True)
        self._exchanges: list[_Exchange] = []
        for module in self._root.modules():
            if isinstance(module, FSDPModule):
                self._exchanges.append(_Exchange())
                module.set_custom_reduce_scatter(self._exchanges[-1])  # pyright: ignore[reportArgumentType]
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._views: list[_View] = []  # known after the first backward, as are
        self._sizes: list[int] = []  # elements of each flat shard

    @property
    def buffer_elements(self) -> int:
        return sum(p.to_local().numel() for p in self._shards())

    def _shards(self) -> list[DTensor]:
        return [p for p in self.parameters if isinstance(p, DTensor)]

    # -- gradients ---------------------------------------------------------------------------------

    def weighted(self, rows: Sequence[ScoredTokens], coefficients: Sequence[float]) -> Buffers:
        score = self._score(rows, coefficients)
        always = score.always
        made = self._shared(score.policy if always is None else score.policy + always)
        return [summed for summed, _ in made]

    def captured(self, rows: Sequence[ScoredTokens]) -> list[Captured]:
        """This rank's shard of every rank's gradients, in order of rank. The reward-independent
        terms get a forward of their own: a second backward through one graph would need weights
        that the first has let go."""
        gradients = self._apart(self._score(rows, [1.0] * len(rows)).policy)
        if not self._scorer.regularised:
            return [(g, None) for g in gradients]
        always = self._apart(self._score(rows, [1.0] * len(rows), measure=False).always)
        return list(zip(gradients, always, strict=True))

    def reference_kl(self, row: ScoredTokens) -> float:
        return self._root(lambda: self._scorer.reference_kl(row))

    def _score(
        self, rows: Sequence[ScoredTokens], coefficients: Sequence[float], measure: bool = True
    ) -> Score:
        def work() -> tuple[torch.Tensor, torch.Tensor | None]:
            score, counts = self._scorer(rows, coefficients, measure), 1.0
            if score is None:
                score, counts = self._scorer([self._idle], [1.0], measure=False), 0.0
            if score is None:
                raise ValueError("the idle row has no action token")
            always = None if score.always is None else score.always * counts
            return score.policy * counts, always

        return Score(*self._root(work))

    def _shared(
        self, term: torch.Tensor | None, apart: bool = False
    ) -> list[tuple[torch.Tensor, Buffers]]:
        """Backward of all ranks: of each layer the sum's shard and, `apart`, each one's own."""
        if term is None:
            raise ValueError("a rank has no term where its peers have one")
        for parameter in self.parameters:
            parameter.grad = None
        for exchange in self._exchanges:
            exchange.apart = apart
        term.backward()
        made = [e for e in (exchange.take() for exchange in self._exchanges) if e is not None]
        if not self._views:
            self._views = [_view(p.grad, made) for p in self.parameters]
            self._sizes = [summed.numel() for summed, _ in made]
        for parameter in self.parameters:
            parameter.grad = None
        return made

    def _apart(self, term: torch.Tensor | None) -> list[Buffers]:
        by_layer = [received for _, received in self._shared(term, apart=True)]
        return [list(of_rank) for of_rank in zip(*by_layer, strict=True)]

    # -- the update's total ------------------------------------------------------------------------

    def fold_into(self, total: Total) -> Buffers:
        """A fold follows a capture: the sizes are known."""
        if total.accumulated is None:
            like = self.zeros()[0]
            total.accumulated = [like.new_zeros(size) for size in self._sizes]
        return total.accumulated

    def zeros(self) -> Buffers:
        return [torch.zeros_like(p.to_local(), dtype=self._dtype) for p in self._shards()]

    def summed(self, total: Total) -> Buffers | None:
        """This rank's shard of each parameter's update, which is summed already."""
        if total.accumulated is None:
            return None
        flats = total.accumulated
        return [flats[v.flat].as_strided(v.size, v.stride, v.offset) for v in self._views]

    def assign(self, update: Buffers, divisor: float) -> None:
        for parameter, part in zip(self._shards(), update, strict=True):
            parameter.grad = DTensor.from_local(
                (part / divisor).to(parameter.dtype),
                parameter.device_mesh,
                parameter.placements,
                shape=parameter.shape,
                stride=parameter.stride(),
            )

    def clip(self, limit: float) -> float:
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        nn.utils.clip_grads_with_norm_(self.parameters, limit, norm)
        return float(norm)

    def norm(self, buffers: Sequence[torch.Tensor]) -> float:
        """Over the shards of all ranks."""
        own = [b.to_local() if isinstance(b, DTensor) else b for b in buffers]
        square = math.fsum(float(n) ** 2 for n in foreach_norm(own))
        total = torch.tensor([square], dtype=torch.float64, device=own[0].device)
        ranks.all_reduce(total)
        return math.sqrt(float(total))

    def weights(self) -> dict[str, torch.Tensor] | None:
        """Gathered layer by layer; kept on the rank that publishes."""
        whole: dict[str, torch.Tensor] = {}
        for name in ("", *self._layers):
            module: Any = self._layer(name)
            module.unshard()
            if self._placement.rank == 0:
                whole |= {k: w.clone() for k, w in self._own_weights(name).items()}
            module.reshard()
        return whole if self._placement.rank == 0 else None

    def _layer(self, name: str) -> nn.Module:
        return self._root.model.get_submodule(name) if name else self._root

    def _own_weights(self, layer: str) -> dict[str, torch.Tensor]:
        """Of one layer; of what is outside all layers for ''. Adapters sit in layers only."""
        if layer:
            plain = lora.plain_weights(self._layer(layer))
            return {f"{layer}.{k}": w for k, w in plain.items()}
        return {
            k: w.detach()
            for k, w in self._root.model.named_parameters()
            if not k.startswith(tuple(f"{n}." for n in self._layers))
        }


def _view(gradient: Any, made: Sequence[tuple[torch.Tensor, Buffers]]) -> _View:
    """FSDP lays gradients out as views of what its reduce-scatter returned."""
    own = gradient.to_local()
    for number, (summed, _) in enumerate(made):
        if summed.untyped_storage().data_ptr() == own.untyped_storage().data_ptr():
            return _View(number, own.size(), own.stride(), own.storage_offset())
    raise ValueError("FSDP keeps gradients elsewhere than in its reduce-scatter's output")
