"""A learner's processes as one group: joining it, and the sums that cross it.

gloo on a CPU; nccl where the weights lie on CUDA (not verified on a GPU). Every rank makes the same
calls in the same order, because the client gives all ranks the same verbs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from harness.learner.placement import Placement

Buffers = list[torch.Tensor]

# A peer that dies closes its connections, which ends a collective at once; this bounds the wait for
# one that hangs.
_TIMEOUT = timedelta(minutes=10)
_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def join(placement: Placement, device: torch.device) -> None:
    """Meet the other ranks. All of them are on this machine."""
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(  # pyright: ignore[reportPrivateImportUsage]
        placement.rendezvous, placement.ranks
    )
    dist.init_process_group(
        _BACKENDS[device.type],
        store=store,
        rank=placement.rank,
        world_size=placement.ranks,
        timeout=_TIMEOUT,
    )


def flat(tensors: Sequence[torch.Tensor], multiple: int = 1) -> torch.Tensor:
    """One vector of all elements, padded with zeros to a length that `multiple` divides."""
    size = sum(t.numel() for t in tensors)
    padding = tensors[0].new_zeros(-size % multiple)
    return torch.cat([*(t.reshape(-1) for t in tensors), padding])


def like(vector: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Buffers:
    """Views of a flat vector in the shapes of `tensors`; what is left over is padding."""
    sizes = [t.numel() for t in tensors]
    pieces = vector[: sum(sizes)].split(sizes)
    return [piece.view(t.shape) for piece, t in zip(pieces, tensors, strict=True)]


def all_reduce(vector: torch.Tensor) -> None:
    """Sum over the ranks, in place."""
    dist.all_reduce(vector)


def exchange(vector: torch.Tensor) -> Buffers:
    """Shard s of every rank's vector goes to rank s; returns one shard per source, each a tensor of
    its own, so that a ledger can free them one by one."""
    shards = list(vector.chunk(dist.get_world_size()))
    received = [torch.empty_like(shard) for shard in shards]
    dist.all_to_all(received, shards)
    return received


def reduce_scatter(vector: torch.Tensor) -> torch.Tensor:
    """This rank's shard of the sum over the ranks."""
    shard = vector.new_empty(vector.numel() // dist.get_world_size())
    dist.reduce_scatter_single(shard, vector)
    return shard


def all_gather(shard: torch.Tensor) -> torch.Tensor:
    """The vector that the ranks' shards make up."""
    vector = shard.new_empty(shard.numel() * dist.get_world_size())
    dist.all_gather_single(vector, shard)
    return vector
