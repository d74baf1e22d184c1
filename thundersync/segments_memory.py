"""What a graph keeps alive: the bytes that autograd saved for backward, each storage once."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch.autograd.graph import saved_tensors_hooks


class Saved(saved_tensors_hooks):
    """Inside it, every tensor that autograd saves is noted. `known` are tensors whose memory is
    somebody else's: parameters, the store of keys and values."""

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self._noted: list[weakref.ref[torch.Tensor]] = []
        super().__init__(self._pack, lambda packed: packed)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        # Detached, as a graph that holds its own output would never be freed.
        packed = tensor.detach()
        self._noted.append(weakref.ref(packed))
        return packed

    def live_bytes(self) -> int:
        """Of those that a graph still holds now."""
        storages: dict[int, int] = {}
        for reference in self._noted:
            tensor = reference()
            if tensor is not None:
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        return sum(size for place, size in storages.items() if place not in self._known)
