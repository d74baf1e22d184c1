"""Narrow and wide storage, and the host's memory: as far as a CPU can show it."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch

from thundersync.ledger import GradientLedger
from thundersync.storage import DeviceStorage, HostStorage, storage_for

CPU = torch.device("cpu")


def summed(ledger: GradientLedger, total_dtype: torch.dtype, count: int = 8) -> torch.Tensor:
    """One binary group of `count` random float32 gradients; returns the relative error."""
    draw = torch.Generator().manual_seed(3)
    gradients = [torch.randn(1000, generator=draw) for _ in range(count)]
    values = [1.0 if i % 2 else -0.5 for i in range(count)]
    truth = sum(v * g.double() for v, g in zip(values, gradients, strict=True))
    total = [torch.zeros(1000, dtype=total_dtype)]
    for i, g in enumerate(gradients):
        ledger.capture(0, [str(i)], [g.clone()])
        ledger.commit([str(i)], float(i % 2))
    ledger.fold(0, {str(i): (float(i % 2), v) for i, v in enumerate(values)}, total)
    ledger.end_of_update()
    assert isinstance(truth, torch.Tensor)
    return torch.linalg.norm(total[0].double() - truth) / torch.linalg.norm(truth)


@pytest.mark.parametrize("form", ["affine", "bucket", "auto"])
def test_each_dtype_rounds_as_it_says(form):
    """The upper bounds are what the settings promise, the lower ones that the storage is used."""
    assert summed(GradientLedger(form, torch.float64), torch.float64) < 1e-15
    assert 1e-9 < summed(GradientLedger(form, torch.float64), torch.float32) < 5e-8
    assert 2e-8 < summed(GradientLedger(form), torch.float32) < 2e-7
    assert 1e-3 < summed(GradientLedger(form, torch.bfloat16), torch.float32) < 8e-3


def test_a_gradient_is_pending_in_the_narrower_dtype():
    for dtype, pending, stored in (
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
        (torch.float64, torch.float32, torch.float64),
    ):
        ledger = GradientLedger("bucket", dtype)
        ledger.capture(0, ["a"], [torch.ones(3)])
        assert ledger._pending["a"].gradients[0].dtype == pending
        ledger.commit(["a"], 1.0)
        assert ledger._groups[0].buckets[1.0][0].dtype == stored


def test_on_a_cpu_the_host_is_the_device():
    assert isinstance(storage_for("host", CPU), DeviceStorage)
    assert isinstance(storage_for("device", torch.device("cuda")), DeviceStorage)
    assert isinstance(storage_for("host", torch.device("cuda")), HostStorage)
    gradient = [torch.ones(3)]
    ledger = GradientLedger("bucket", storage="host")
    ledger.capture(0, ["a"], gradient)
    ledger.commit(["a"], 1.0)
    assert ledger._groups[0].buckets[1.0] is gradient


@pytest.mark.parametrize("form", ["affine", "bucket", "auto"])
@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16])
def test_sums_on_the_host_equal_sums_on_the_device(form, dtype):
    hosted, plain = GradientLedger(form, dtype), GradientLedger(form, dtype)
    hosted._storage, hosted._where = HostStorage(CPU), "host"
    hosted._account.measure([torch.zeros(1000)], elsewhere=True)
    assert summed(hosted, torch.float32) == summed(plain, torch.float32)


class Streams:
    """torch.cuda's calls, written down in order; an event is over once it was waited for."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def current_stream(self) -> str:
        return "current"

    def Stream(self) -> Streams:
        return self

    def wait_stream(self, stream: str) -> None:
        self.calls.append(f"side waits for {stream}")

    @contextlib.contextmanager
    def stream(self, side: Streams):
        self.calls.append("side begins")
        yield
        self.calls.append("side ends")

    def Event(self) -> Event:
        return Event(self.calls)


class Event:
    def __init__(self, calls: list[str]) -> None:
        self._calls, self.over = calls, False

    def record(self, side: Streams) -> None:
        self._calls.append("event")

    def query(self) -> bool:
        return self.over

    def synchronize(self) -> None:
        self._calls.append("host waits")
        self.over = True


def test_a_copy_follows_its_backward_and_is_waited_for_before_its_bytes_are_read():
    streams = Streams()
    storage = HostStorage(CPU, streams)
    source = [torch.ones(3)]
    alive = weakref.ref(source[0])
    held = storage.take(source, torch.float32)
    assert streams.calls == ["side waits for current", "side begins", "event", "side ends"]
    assert held[0].data_ptr() != source[0].data_ptr()
    del source
    other = storage.take([torch.zeros(3)], torch.float32)
    gc.collect()
    assert alive() is not None  # its copy may still be under way
    streams.calls.clear()
    assert storage.ready(held) is held
    assert streams.calls == ["host waits"]
    gc.collect()
    assert alive() is None
    assert storage.ready(held) is held
    assert streams.calls == ["host waits"]  # once is enough
    storage.ready(other)
    assert streams.calls == ["host waits"] * 2


def test_the_first_of_a_bucket_waits_for_nothing():
    """It is swapped in; its bytes are read when a second comes, or at the fold."""
    streams = Streams()
    ledger = GradientLedger("bucket")
    ledger._storage = HostStorage(CPU, streams)
    ledger._account.measure([torch.zeros(3)], elsewhere=True)
    for name in "ab":
        ledger.capture(0, [name], [torch.ones(3)])
    ledger.commit(["a"], 1.0)
    assert "host waits" not in streams.calls
    ledger.commit(["b"], 1.0)
    assert streams.calls.count("host waits") == 2
    total = [torch.zeros(3)]
    ledger.fold(0, {"a": (1.0, 0.5), "b": (1.0, 0.5), "c": (0.0, -1.0)}, total)
    assert torch.equal(total[0], torch.ones(3))
