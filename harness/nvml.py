"""GPU utilisation as the driver reports it, beside the busy intervals: not verified on a GPU.

NVML's figure is the part of its own last sampling period in which some kernel ran on the GPU,
however small the kernel: an upper bound of what "busy" means elsewhere, and a check of it.
"""

from __future__ import annotations

import importlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.config import Config
from harness.timeline import Window

EVERY_S = 0.5  # the driver's own period is between 1/6 s and 1 s


class UtilisationSampler:
    """A thread that asks for the utilisation of the learner's first `ranks` GPUs until `stop`.
    `library` is pynvml, or what answers as it does. `visible` is CUDA_VISIBLE_DEVICES: torch counts
    the GPUs in it, NVML all of them."""

    def __init__(
        self,
        library: Any,
        ranks: int,
        *,
        visible: str | None = None,
        every_s: float = EVERY_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._library, self._every_s, self._now = library, every_s, now
        self._samples: list[tuple[float, list[float]]] = []
        self._error: str | None = None
        self._ended = threading.Event()
        library.nvmlInit()
        self._handles = [self._handle(name) for name in gpus(ranks, visible)]
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._thread.start()

    def _handle(self, name: int | str) -> Any:
        if isinstance(name, int):
            return self._library.nvmlDeviceGetHandleByIndex(name)
        return self._library.nvmlDeviceGetHandleByUUID(name)

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                rates = [
                    self._library.nvmlDeviceGetUtilizationRates(handle).gpu / 100
                    for handle in self._handles
                ]
            except self._library.NVMLError as error:  # a GPU that fell off the bus, a driver reload
                self._error = str(error)
                return
            self._samples.append((self._now(), rates))

    def stop(self) -> None:
        """No more samples. Idempotent."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            self._library.nvmlShutdown()

    def summary(self, windows: Sequence[Window]) -> Mapping[str, Any]:
        """summary.json's `nvml`: mean utilisation of each GPU and of all over the samples taken
        inside the windows (None without one), how many those were, and what ended the sampling."""
        inside = [
            rates for at, rates in self._samples if any(start <= at < end for start, end in windows)
        ]
        per_gpu = [statistics.fmean(rates) for rates in zip(*inside, strict=True)]
        return {
            "utilisation": statistics.fmean(per_gpu) if per_gpu else None,
            "per_gpu": per_gpu,
            "samples": len(inside),
            "error": self._error,
        }


def gpus(ranks: int, visible: str | None) -> list[int | str]:
    """NVML's names of torch's first `ranks` GPUs."""
    if not visible:
        return list(range(ranks))
    names = [name.strip() for name in visible.split(",")][:ranks]
    return [int(name) if name.isdigit() else name for name in names]


def open_sampler(config: Config, say: Callable[[str], None]) -> UtilisationSampler | None:
    """The sampler of a learner on GPUs; None for one on the CPU, and, said in one line, where
    pynvml is not installed or finds no driver."""
    if config.learner.device != "cuda":
        return None
    try:
        library = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        say("nvml: no utilisation is sampled; pip install nvidia-ml-py")
        return None
    try:
        return UtilisationSampler(
            library, config.learner.ranks, visible=os.environ.get("CUDA_VISIBLE_DEVICES")
        )
    except library.NVMLError as error:
        say(f"nvml: no utilisation is sampled: {error}")
        return None
