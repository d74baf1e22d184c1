"""The ledger's settings reach the learner, and what they cannot be is refused by name."""

from __future__ import annotations

import pytest
import torch

from baselines.sync import Sync
from harness.composition import compose
from harness.config import Config
from harness.learner.torch_learner import TorchLearner
from harness.parts import learner_options
from harness.protocols import UsageError
from harness.validation import validate
from thundersync.check import relative_error
from thundersync.ledger import LedgerError
from thundersync.recorded import InlineLearner, RecordedBatch, play
from thundersync.stream import Stream
from thundersync.synthetic import arrival, synthetic_groups

GROUPS = synthetic_groups(1, 128, (0.0, 0.25, 1.0), 3, 6)


def updated(
    schedule: type, policy, folder, release: str, **ledger
) -> tuple[InlineLearner, TorchLearner]:
    config = Config()
    config.schedule.release = release
    config.schedule.learning_rate = 0.0
    for key, value in ledger.items():
        setattr(config.ledger, key, value)
    learner = TorchLearner(**learner_options(config, policy, folder))
    batch = RecordedBatch(GROUPS, arrival(GROUPS, 1), burst=2, reward_delay=3)
    return play(schedule(config), learner, config, [batch]), learner


def test_bfloat16_storage_halves_the_bytes_and_rounds_by_its_own_precision(qwen3, tmp_path):
    """The total stays in float32: without captures the update is as exact as ever."""
    reference = updated(Sync, qwen3, tmp_path, "batch")[0].directions[0]
    full, _ = updated(Stream, qwen3, tmp_path, "submit")
    half, learner = updated(Stream, qwen3, tmp_path, "submit", dtype="bfloat16")
    assert relative_error(full.directions[0], reference) < 1e-5
    assert 5e-4 < relative_error(half.directions[0], reference) < 2e-2
    nothing_held, _ = updated(Stream, qwen3, tmp_path, "group", dtype="bfloat16")
    assert relative_error(nothing_held.directions[0], reference) < 1e-5
    gradient = sum(p.numel() for p in learner.parameters)
    assert full.stats[0].ledger_bytes_peak == full.stats[0].ledger_buffers_peak * gradient * 4
    buffers = half.stats[0].ledger_buffers_peak
    assert buffers == full.stats[0].ledger_buffers_peak
    # Beside its narrow copy the last gradient is there once more, as the backward made it.
    assert half.stats[0].ledger_bytes_peak == buffers * gradient * 2 + gradient * 4
    assert half.stats[0].buffer_bytes == gradient * 2


def test_on_a_cpu_host_storage_is_the_same_update_to_the_bit(qwen3, tmp_path):
    device, _ = updated(Stream, qwen3, tmp_path, "submit")
    host, _ = updated(Stream, qwen3, tmp_path, "submit", storage="host")
    assert torch.equal(host.directions[0], device.directions[0])


def test_the_bucket_cap_holds_in_the_bucket_form_alone(qwen3, tmp_path):
    with pytest.raises(
        LedgerError, match=r"more than 2 distinct rewards; raise ledger\.bucket_cap"
    ):
        updated(Stream, qwen3, tmp_path, "reward", form="bucket", bucket_cap=2)
    capped, _ = updated(Stream, qwen3, tmp_path, "reward", form="auto", bucket_cap=2)
    wide, _ = updated(Stream, qwen3, tmp_path, "reward", form="bucket")  # null: the group's size
    assert relative_error(capped.directions[0], wide.directions[0]) < 1e-5


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("ledger.dtype=float16", "ledger.dtype=float16: not available; there is: float32"),
        ("ledger.storage=disk", "ledger.storage=disk: not available; there is: device, host"),
        ("ledger.bucket_cap=1", "ledger.bucket_cap=1: out of range; it must be at least 2"),
        ("ledger.max_open_groups=0", "ledger.max_open_groups=0: out of range"),
    ],
)
def test_what_cannot_be_is_refused_by_name(override: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        validate(compose([override]))
    assert words in str(caught.value)


def test_every_offered_setting_is_valid():
    for dtype in ("float32", "float64", "bfloat16"):
        for storage in ("device", "host"):
            overrides = [f"ledger.dtype={dtype}", f"ledger.storage={storage}"]
            validate(compose([*overrides, "ledger.bucket_cap=2"]))
