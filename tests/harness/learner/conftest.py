"""Learners over real processes, driven by real schedules on recorded batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.config import Config
from harness.learner.client import TorchLearnerClient
from harness.parts import learner_options
from harness.protocols import Schedule, StepStats
from thundersync.recorded import RecordedBatch, RecordedRun

LAYOUTS = {"ddp": ("ddp", False), "sharded": ("ddp", True), "fsdp": ("fsdp", False)}


class ProbedClient(TorchLearnerClient):
    """Keeps each update's direction, and the collectives before and in its step."""

    TARGET = "probe:ProbedLearner"

    def __init__(self, options: dict[str, Any], threads: int) -> None:
        super().__init__(options, threads)
        self.directions: list[torch.Tensor] = []
        self.stats: list[StepStats] = []
        self.before: list[list[dict[str, int]]] = []
        self.stepping: list[list[dict[str, int]]] = []

    async def ask(self, verb: str, *arguments: Any) -> list[Any]:
        return await self._all(verb, *arguments)

    async def step(self, normaliser: float) -> StepStats:
        self.before.append(await self._all("collectives"))
        raw = await self._all("direction", normaliser)
        assert len(set(raw)) == 1  # every rank knows the same update
        self.directions.append(torch.from_numpy(np.frombuffer(raw[0]).copy()))
        await self._all("collectives")
        self.stats.append(await super().step(normaliser))
        self.stepping.append(await self._all("collectives"))
        return self.stats[-1]


@dataclass
class Fleet:
    """A started learner of several processes, and the loop that it lives in."""

    client: ProbedClient
    config: Config
    runner: asyncio.Runner = field(repr=False)

    def ask(self, verb: str, *arguments: Any) -> list[Any]:
        return self.runner.run(self.client.ask(verb, *arguments))

    def play(self, schedule: Schedule, batches: Sequence[RecordedBatch]) -> list[torch.Tensor]:
        """The directions of the updates that the batches make."""
        known = len(self.client.directions)
        run = RecordedRun(self.client, self.config, batches)
        self.runner.run(schedule.run(run))
        return self.client.directions[known:]


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 whose sizes do not divide evenly over ranks."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=129, hidden_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=18, intermediate_size=70, tie_word_embeddings=True,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("policy")
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def make_config(ranks: int = 1, layout: str = "ddp", dtype: str = "float32") -> Config:
    """A learning rate of 0: every update is played at the same weights."""
    config = Config()
    config.schedule.release = "reward"
    config.schedule.chunk_tokens = 256
    config.schedule.learning_rate = 0.0
    config.schedule.learner_devices = ranks
    config.learner.dtype = config.ledger.dtype = dtype
    config.learner.ranks = ranks
    config.learner.parallel, config.ledger.sharded = LAYOUTS[layout]
    return config


StartFleet = Callable[[Config], Fleet]


@pytest.fixture(scope="module")
def start_fleet(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartFleet]:
    """Starts learners; all are ended with the module."""
    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
        started: list[ProbedClient] = []

        def start(config: Config) -> Fleet:
            options = learner_options(config, policy, tmp_path_factory.mktemp("weights"))
            client = ProbedClient(options, config.learner.ranks)
            started.append(client)
            runner.run(client.start())
            return Fleet(client, config, runner)

        yield start
        for client in started:
            runner.run(client.close())
