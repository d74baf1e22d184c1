"""The NVML sampler, against a module that answers as pynvml does; never run against a GPU."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from harness.composition import compose
from harness.nvml import UtilisationSampler, gpus, open_sampler


class FakeNvml(SimpleNamespace):
    """GPU 0 is at 80 %, then at 40 %; the GPU of index or UUID 7 always at 10 %."""

    class NVMLError(Exception):
        pass

    def __init__(self, fails_after: int | None = None) -> None:
        super().__init__(opened=[], inits=0, shutdowns=0, asked=0)
        self.fails_after = fails_after

    def nvmlInit(self) -> None:
        self.inits += 1

    def nvmlShutdown(self) -> None:
        self.shutdowns += 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self.opened.append(index)
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        self.opened.append(uuid)
        return 7

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if handle == 7:
            return SimpleNamespace(gpu=10, memory=1)
        if self.asked == self.fails_after:
            raise self.NVMLError("GPU is lost")
        self.asked += 1
        return SimpleNamespace(gpu=80 if self.asked == 1 else 40, memory=1)


def sampled(library: FakeNvml, samples: int, **options: Any) -> UtilisationSampler:
    """A sampler after so many samples, taken at 1 s, 2 s, and so on of its clock."""
    ticks = iter(range(1, 10_000))
    sampler = UtilisationSampler(library, every_s=0.002, now=lambda: float(next(ticks)), **options)
    deadline = time.monotonic() + 5
    while library.asked < samples and time.monotonic() < deadline:
        time.sleep(0.002)
    sampler.stop()
    return sampler


def test_only_samples_inside_the_windows_count():
    library = FakeNvml()
    sampler = sampled(library, 3, ranks=1)
    first = sampler.summary([(0.0, 2.0)])  # the sample at 1 s
    assert first == {"utilisation": 0.8, "per_gpu": [0.8], "samples": 1, "error": None}
    assert sampler.summary([(0.0, 3.0)])["utilisation"] == pytest.approx(0.6)
    assert sampler.summary([(0.5, 1.5), (2.5, 3.5)])["utilisation"] == pytest.approx(0.6)
    empty = sampler.summary([])
    assert (empty["utilisation"], empty["per_gpu"], empty["samples"]) == (None, [], 0)
    sampler.stop()
    assert (library.inits, library.shutdowns) == (1, 1)


def test_the_gpus_are_those_that_torch_sees():
    library = FakeNvml()
    sampler = sampled(library, 1, ranks=2, visible="0, GPU-7f, 3")
    assert library.opened == [0, "GPU-7f"]
    assert sampler.summary([(1.0, 2.0)])["per_gpu"] == [0.8, 0.1]
    assert gpus(2, None) == gpus(2, "") == [0, 1]


def test_a_gpu_that_is_lost_ends_the_sampling_and_not_the_run():
    library = FakeNvml(fails_after=1)
    sampler = UtilisationSampler(library, 1, every_s=0.002)
    deadline = time.monotonic() + 5
    while sampler.summary([])["error"] is None and time.monotonic() < deadline:
        time.sleep(0.002)
    sampler.stop()
    summary = sampler.summary([(0.0, time.monotonic())])
    assert (summary["samples"], summary["error"]) == (1, "GPU is lost")
    assert library.shutdowns == 1


def test_a_learner_on_the_cpu_has_no_sampler(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    said: list[str] = []
    assert open_sampler(compose([]), said.append) is None
    assert said == []
    sampler = open_sampler(compose(["learner.device=cuda"]), said.append)
    assert sampler is not None
    sampler.stop()


def test_what_is_missing_is_said_in_one_line(monkeypatch):
    said: list[str] = []
    cuda = compose(["learner.device=cuda"])
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert open_sampler(cuda, said.append) is None

    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:
            raise self.NVMLError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", NoDriver())
    assert open_sampler(cuda, said.append) is None
    assert said == [
        "nvml: no utilisation is sampled; pip install nvidia-ml-py",
        "nvml: no utilisation is sampled: Driver Not Loaded",
    ]
