"""Adapters on several learner processes: the updates of one process, a ledger of adapters only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from baselines.sync import Sync
from harness.config import Config
from thundersync.recorded import RecordedBatch
from thundersync.stream import Stream
from thundersync.synthetic import arrival, synthetic_groups

# Of the fixture's policy: two layers, q 48 -> 36, down 70 -> 48, rank 3.
ADAPTER_PARAMETERS = 2 * 3 * ((48 + 36) + (70 + 48))
UPDATES = 3  # B is 0 at first: only later updates move A


@pytest.fixture
def adapted(make_config: Callable[..., Config]) -> Callable[[int, str], Config]:
    def make(ranks: int, layout: str) -> Config:
        config = make_config(ranks, layout, "float64")
        config.schedule.learning_rate = 1e-2
        lora = config.policy.lora
        lora.rank, lora.targets = 3, ["q_proj", "down_proj"]
        return config

    return make


@pytest.mark.parametrize("layout", [pytest.param("ddp", marks=pytest.mark.slow), "sharded", "fsdp"])
def test_two_ranks_make_the_updates_of_one(
    adapted: Callable[[int, str], Config], fleet: Callable[[Config], Any], layout: str
) -> None:
    def play(schedule: type, config: Config) -> tuple[Any, list[torch.Tensor], dict]:
        learner = fleet(config)
        recorded = [synthetic_groups(seed, 129, (0.0, 1.0, 0.3)) for seed in range(UPDATES)]
        batches = [RecordedBatch(g, arrival(g, 7), burst=2, reward_delay=3) for g in recorded]
        directions = learner.play(schedule(config), batches)
        path, version = learner.wait(learner.client.publish())
        assert version == UPDATES
        return learner, directions, load_file(Path(path))

    _, expected, plain = play(Sync, adapted(1, "ddp"))
    learner, directions, published = play(Stream, adapted(2, layout))
    assert len(directions) == UPDATES
    for direction, reference in zip(directions, expected, strict=True):
        assert direction.numel() == ADAPTER_PARAMETERS
        norm = torch.linalg.norm(reference)
        assert torch.linalg.norm(direction - reference) <= 1e-9 * norm
    assert {n: w.shape for n, w in published.items()} == {n: w.shape for n, w in plain.items()}
    assert not any("lora" in n or "base_layer" in n for n in published)
    for name, weight in published.items():
        torch.testing.assert_close(weight, plain[name], rtol=1e-7, atol=1e-9)
    stats = learner.client.stats[-1]
    elements = stats.ledger_bytes_peak / stats.ledger_buffers_peak / 8
    if layout == "fsdp":  # rows are dealt out whole, and three do not divide evenly
        assert ADAPTER_PARAMETERS / 2 <= elements <= 0.7 * ADAPTER_PARAMETERS
    else:
        assert elements == (ADAPTER_PARAMETERS if layout == "ddp" else ADAPTER_PARAMETERS / 2)
