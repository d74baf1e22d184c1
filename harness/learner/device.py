"""Where a learner's weights lie: a CPU's memory, or one GPU per rank (not verified on a GPU)."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from harness.learner.placement import Placement
from harness.protocols import UsageError


def open_device(
    placement: Placement, visible: Callable[[], int] = torch.cuda.device_count
) -> torch.device:
    """The device of one rank. Raises UsageError where this machine does not show that many GPUs."""
    if placement.device == "cpu":
        return torch.device("cpu")
    if visible() < placement.ranks:
        raise UsageError(
            f"learner.device={placement.device}, learner.ranks={placement.ranks}: torch sees "
            f"{visible()} CUDA devices here; take learner.device=cpu, or fewer ranks"
        )
    # What torch.use_deterministic_algorithms needs of cuBLAS, read when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.cuda.set_device(placement.rank)
    return torch.device("cuda", placement.rank)


def settle(device: torch.device) -> None:
    """Wait until what was asked of the device is done: busy intervals end there, not when the last
    kernel was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
