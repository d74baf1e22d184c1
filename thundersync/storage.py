"""Where a ledger's buffers live: beside the gradients, or in pinned host memory.

A storage takes a gradient over (`take`), says when its bytes may be read (`ready`), and brings a
finished sum to the update's total (`onto`). math.md section 2; `ledger.storage`.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch

Buffers = list[torch.Tensor]
Where = Literal["device", "host"]


class Storage(Protocol):
    """`copies`: a taken gradient lies in another memory than the one that was handed over."""

    copies: bool

    def take(self, gradients: Buffers, dtype: torch.dtype) -> Buffers:
        """The gradient in this storage, in `dtype`; the caller gives `gradients` away."""
        ...

    def ready(self, buffers: Buffers) -> Buffers:
        """The same buffers, once their bytes have arrived."""
        ...

    def onto(self, buffers: Buffers, device: torch.device) -> Buffers:
        """The buffers where a total on `device` can be added to."""
        ...


class DeviceStorage:
    """Buffers stay where the backward pass made them: taking one over moves no byte, unless its
    dtype changes."""

    copies = False

    def take(self, gradients: Buffers, dtype: torch.dtype) -> Buffers:
        return gradients if gradients[0].dtype == dtype else [g.to(dtype) for g in gradients]

    def ready(self, buffers: Buffers) -> Buffers:
        return buffers

    def onto(self, buffers: Buffers, device: torch.device) -> Buffers:
        return buffers


class HostStorage:
    """Pinned host memory for gradients of an accelerator: each is copied once, on a side stream,
    while the learner goes on; sums are made on the host, and one finished sum a fold goes back. A
    gradient's device memory is kept until its copy has ended, seen at the next `take`.

    Not verified on a GPU: the order of copies and events is tested with CPU tensors, for which
    torch offers the same stream calls. `streams` is torch's module for the device.
    """

    copies = True

    def __init__(self, device: torch.device, streams: Any = None) -> None:
        self._streams = torch.get_device_module(device) if streams is None else streams
        self._pinned = device.type != "cpu"  # only an accelerator has pinned memory
        self._side: Any = None
        self._travelling: list[tuple[Any, Buffers, Buffers]] = []

    def take(self, gradients: Buffers, dtype: torch.dtype) -> Buffers:
        if self._side is None:
            self._side = self._streams.Stream()
        self._travelling = [t for t in self._travelling if not t[0].query()]
        self._side.wait_stream(self._streams.current_stream())  # the backward that made them
        held = [
            torch.empty(g.shape, dtype=dtype, device="cpu", pin_memory=self._pinned)
            for g in gradients
        ]
        arrived = self._streams.Event()
        with self._streams.stream(self._side):
            for host, gradient in zip(held, gradients, strict=True):
                host.copy_(gradient, non_blocking=True)
            arrived.record(self._side)
        self._travelling.append((arrived, gradients, held))
        return held

    def ready(self, buffers: Buffers) -> Buffers:
        for arrived, _, held in self._travelling:
            if held is buffers:
                arrived.synchronize()
        self._travelling = [t for t in self._travelling if t[2] is not buffers]
        return buffers

    def onto(self, buffers: Buffers, device: torch.device) -> Buffers:
        return [b.to(device, non_blocking=True) for b in buffers]


def storage_for(where: Where, device: torch.device) -> Storage:
    """The storage of gradients on `device`. On a CPU the host is the device: nothing moves."""
    return HostStorage(device) if where == "host" and device.type != "cpu" else DeviceStorage()
