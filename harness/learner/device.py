"""Where a learner's weights lie: a CPU's memory, or one GPU per rank (not verified on a GPU)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from harness.hardware import available_bytes
from harness.learner.placement import Placement
from harness.memory import LearnerMemory
from harness.protocols import UsageError

if TYPE_CHECKING:
    from harness.learner.gradients import Replicated


def open_device(
    placement: Placement, visible: Callable[[], int] = torch.cuda.device_count
) -> torch.device:
    """The device of one rank. Raises UsageError where this machine does not show that many GPUs."""
    if placement.device == "cpu":
        return torch.device("cpu")
    own = placement.gpu is not None  # its process sees no other's
    if visible() < (1 if own else placement.ranks):
        raise UsageError(
            f"learner.device={placement.device}, learner.ranks={placement.ranks}: torch sees "
            f"{visible()} CUDA devices here; take learner.device=cpu, or fewer ranks"
        )
    # What torch.use_deterministic_algorithms needs of cuBLAS, read when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    number = placement.rank if placement.gpu is None else placement.gpu
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def settle(device: torch.device) -> None:
    """Wait until what was asked of the device is done: busy intervals end there, not when the last
    kernel was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(
    placement: Placement,
    device: torch.device,
    layout: Replicated,
    free_bytes: int | None,
    pass_bytes: int = 0,
) -> LearnerMemory:
    """What there is for the ledger; `free_bytes` stands for a measurement."""
    host_bytes = available_bytes()
    if free_bytes is None:
        cuda = device.type == "cuda"
        free_bytes = torch.cuda.mem_get_info(device)[0] if cuda else host_bytes
    elements = layout.buffer_elements
    whole = sum(p.numel() for p in layout.parameters)
    return LearnerMemory(
        device=device.type,
        free_bytes=free_bytes,
        host_free_bytes=host_bytes,
        parameters=elements if layout.joint else whole,
        buffer_elements=elements,
        processes=placement.ranks if device.type == "cpu" else 1,
        sharded=placement.together,
        pass_bytes=pass_bytes,
    )
