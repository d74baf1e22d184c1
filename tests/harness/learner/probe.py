"""A learner rank that also tells what tests ask: loaded by worker processes as `probe`."""

from __future__ import annotations

import hashlib
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from harness.learner.torch_learner import TorchLearner
from harness.policy.load import load_for_training
from thundersync.true_norms import use_true_norms

_COUNTED: Counter[str] = Counter()


def _count(name: str) -> None:
    """Count the calls of a collective."""
    original = getattr(dist, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        _COUNTED[name] += 1
        return original(*args, **kwargs)

    setattr(dist, name, counted)


for _name in ("all_reduce", "all_gather_single", "reduce_scatter_single", "all_to_all"):
    _count(_name)


class ProbedLearner(TorchLearner):
    """In float64 its norms are true to the dtype, as in the parity check."""

    def __init__(self, policy: str, dtype: str, adapters: Any = None, **options: Any) -> None:
        model = load_for_training(Path(policy), getattr(torch, dtype), adapters)
        if dtype == "float64":
            use_true_norms(model)
        super().__init__(policy=policy, dtype=dtype, adapters=adapters, model=model, **options)

    def rebuild(self, options: dict[str, Any]) -> None:
        """Another learner; the ranks meet anew."""
        if dist.is_initialized():
            dist.destroy_process_group()
        type(self).__init__(self, **options)

    def direction(self, normaliser: float) -> bytes:
        """The whole update direction, flat, in float64."""
        update = self.update_direction(normaliser)
        whole = []
        for parameter, part in zip(self.parameters, update, strict=True):
            if isinstance(parameter, DTensor):
                part = DTensor.from_local(
                    part.contiguous(), parameter.device_mesh, parameter.placements,
                    shape=parameter.shape, stride=parameter.stride(),
                ).full_tensor()  # fmt: skip
            whole.append(part.flatten().double())
        return torch.cat(whole).numpy().tobytes()

    def digest(self) -> str:
        """Of all weights, bit for bit."""
        whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in self.parameters]
        return hashlib.sha256(torch.cat([w.detach().flatten() for w in whole]).numpy()).hexdigest()

    def collectives(self) -> dict[str, int]:
        """Calls since the last time."""
        counted = dict(_COUNTED)
        _COUNTED.clear()
        return counted

    def die_in_a_collective(self, rank: int) -> None:
        """One rank dies while its peers wait for it."""
        if self._placement.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))

    def fail_in_a_collective(self, rank: int) -> None:
        """One rank raises while its peers wait for it."""
        if self._placement.rank == rank:
            raise ValueError("a row that cannot be scored")
        dist.all_reduce(torch.ones(1))
