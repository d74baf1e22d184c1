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
from harness.learner.torch_learner import TorchLearner
from harness.parts import learner_options
from harness.policy.load import load_for_training
from harness.protocols import Schedule, StepStats
from thundersync.recorded import RecordedBatch, RecordedRun
from thundersync.true_norms import use_true_norms

_LAYOUTS = {"ddp": ("ddp", False), "sharded": ("ddp", True), "fsdp": ("fsdp", False)}
_VOCABULARY = 129


class ProbedClient(TorchLearnerClient):
    """Keeps each update's direction, the collectives before and in its step, and what was discarded
    and dropped."""

    TARGET = "probe:ProbedLearner"

    def __init__(self, options: dict[str, Any], threads: int) -> None:
        super().__init__(options, threads)
        self.directions: list[torch.Tensor] = []
        self.stats: list[StepStats] = []
        self.before: list[list[dict[str, int]]] = []
        self.stepping: list[list[dict[str, int]]] = []
        self.discarded: list[str] = []
        self.dropped: list[int] = []

    async def rebuild(self, options: dict[str, Any]) -> None:
        """Another learner in the same processes: a process takes seconds to start."""
        running = self._workers
        super().__init__(options, self._each * len(running))
        self._workers = running
        ranks = range(self._placement.ranks)
        await self._ask("rebuild", {r: (self._options_of(r, options),) for r in ranks})

    async def ask(self, verb: str, *arguments: Any) -> list[Any]:
        return await self._all(verb, *arguments)

    async def discard(self, trajectory_ids: Sequence[str]) -> None:
        self.discarded += trajectory_ids
        await super().discard(trajectory_ids)

    async def drop(self, group: int) -> None:
        self.dropped.append(group)
        await super().drop(group)

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

    def wait(self, awaitable: Any) -> Any:
        return self.runner.run(awaitable)

    def ask(self, verb: str, *arguments: Any) -> list[Any]:
        return self.wait(self.client.ask(verb, *arguments))

    def play(self, schedule: Schedule, batches: Sequence[RecordedBatch]) -> list[torch.Tensor]:
        """The directions of the updates that the batches make."""
        known = len(self.client.directions)
        self.wait(schedule.run(RecordedRun(self.client, self.config, batches)))
        return self.client.directions[known:]


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 whose sizes do not divide evenly over ranks."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=_VOCABULARY, hidden_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=18, intermediate_size=70, tie_word_embeddings=True,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("policy")
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def _config(ranks: int = 1, layout: str = "ddp", dtype: str = "float32") -> Config:
    """A learning rate of 0: every update is played at the same weights."""
    config = Config()
    config.schedule.release = "reward"
    config.schedule.chunk_tokens = 256
    config.schedule.learning_rate = 0.0
    config.schedule.learner_devices = ranks
    config.rollout.group_size = 6
    config.learner.dtype = config.ledger.dtype = dtype
    config.learner.ranks = ranks
    config.learner.parallel, config.ledger.sharded = _LAYOUTS[layout]
    return config


@pytest.fixture(scope="session")
def make_config() -> Callable[..., Config]:
    return _config


@pytest.fixture(scope="session")
def one_rank(
    policy: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Config], TorchLearner]:
    """A learner in this process, as configured but for the ranks."""

    def make(config: Config) -> TorchLearner:
        config.learner.ranks, config.learner.parallel, config.ledger.sharded = 1, "ddp", False
        options = learner_options(config, policy, tmp_path_factory.mktemp("weights"))
        if config.learner.dtype == "float32":
            return TorchLearner(**options)
        model = load_for_training(policy, torch.float64, options["adapters"])
        use_true_norms(model)
        return TorchLearner(**options, model=model)

    return make


Start = Callable[[Config], Fleet]


@pytest.fixture(scope="session")
def start(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts learners of their own processes; all are ended with the session."""
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


@pytest.fixture(scope="session")
def fleet(
    start: Start, policy: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Config], Fleet]:
    """A fresh learner as configured, in processes that are started once per number of ranks."""
    running: dict[int, Fleet] = {}

    def get(config: Config) -> Fleet:
        ranks = config.learner.ranks
        if ranks not in running:
            running[ranks] = start(_config(ranks))
        client = running[ranks].client
        options = learner_options(config, policy, tmp_path_factory.mktemp("weights"))
        running[ranks].wait(client.rebuild(options))
        return Fleet(client, config, running[ranks].runner)

    return get
