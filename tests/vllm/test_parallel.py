"""Several processes and several replicas of vLLM: each has the new weights, and answers as one
engine does. (Of an update in two processes, tests/vllm/test_updates.py.)"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from harness.cluster.local import LocalCluster
from harness.composition import compose
from harness.engines.replicas import Replicas
from harness.engines.select import open_engine
from harness.policy.load import resolve
from harness.protocols import Completion, Generation, InfrastructureError

PROMPT = list(range(20, 180))
CLOSE, FAR = 1e-4, 0.05  # of one token's log-probability: rounding, and other weights


def ask(session: str, new: int = 24, temperature: float = 1.0) -> Generation:
    return Generation(session, PROMPT, new, temperature, 4, ())


def below(pid: int) -> list[str]:
    """vLLM's processes, by the titles that they give themselves."""
    found = (child.cmdline()[:1] for child in psutil.Process(pid).children(recursive=True))
    return sorted(title[0] for title in found if title and title[0].startswith("VLLM::"))


def test_two_processes_answer_as_one(tiny: Any, halves: Any) -> None:
    assert below(tiny.client.pid) == ["VLLM::EngineCore"]
    assert below(halves.client.pid) == [
        "VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1"
    ]  # fmt: skip
    for engine in (tiny, halves):
        initial = str(engine.folder / "model.safetensors")
        engine.run(engine.client.update_weights(initial, 7))
    for temperature in (0.0, 1.0):
        session = f"as-one-{temperature}"
        (one,) = tiny.generate(ask(session, 60, temperature))
        (two,) = halves.generate(ask(session, 60, temperature))
        assert two.tokens_T == one.tokens_T
        assert two.logprobs_T == pytest.approx(one.logprobs_T, abs=CLOSE)


def test_replicas_publish_and_a_dead_one_comes_back_with_the_newest_weights(
    tiny: Any, score: Callable[..., torch.Tensor], moved: Callable[..., Path], tmp_path: Path
) -> None:
    old = tiny.folder / "model.safetensors"
    new = moved(tiny.folder, tmp_path / "weights-000003.safetensors", 5)
    config = compose(
        ["engine=vllm", "engine.replicas=2", "schedule.engine_devices=2", "engine.slots=4",
         "rollout.max_context_tokens=640"]
    )  # fmt: skip
    said: list[str] = []

    def check(answer: Completion) -> None:
        assert [s.version for s in answer.version_spans] == [3]
        for weights, near in ((new, True), (old, False)):
            tokens = PROMPT + answer.tokens_T
            expected = score(tiny.folder, tokens, len(PROMPT), weights=weights)
            gap = float((torch.tensor(answer.logprobs_T) - expected).abs().max())
            assert gap < CLOSE if near else gap > FAR

    async def scenario(engine: Replicas) -> None:
        await engine.start()
        await engine.update_weights(str(new), 3)
        answers = await asyncio.gather(engine.generate(ask("a")), engine.generate(ask("b")))
        assert answers[0].tokens_T == answers[1].tokens_T  # the same seed, each on its own
        for answer in answers:
            check(answer)
        busy = await engine.drain_intervals()
        assert {interval.resource for interval in busy} == {"engine/0", "engine/1"}
        await engine.release("a")
        cut = asyncio.create_task(engine.generate(ask("cut", 450)))
        await asyncio.sleep(0.5)
        cores = psutil.Process(engine.pids[0]).children()
        next(c for c in cores if c.cmdline()[:1] == ["VLLM::EngineCore"]).kill()
        with pytest.raises(InfrastructureError, match=r"engine/0: vLLM's EngineCore process ended"):
            await cut
        check(await engine.generate(ask("meanwhile")))
        while not engine.restarts:
            await asyncio.sleep(0.1)
        await engine.release("cut")
        check(await engine.generate(ask("again")))
        busy = await engine.drain_intervals()
        assert {interval.resource for interval in busy} == {"engine/0", "engine/1"}

    async def whole() -> None:
        engine = open_engine(config, resolve("tiny"), LocalCluster(), said.append)
        try:
            await scenario(engine)
            processes = [p for pid in engine.pids for p in psutil.Process(pid).children(True)]
        finally:
            await engine.close()
        _, left = psutil.wait_procs(processes, timeout=10)
        assert left == []

    asyncio.run(asyncio.wait_for(whole(), 900))
    assert said == [
        "engine/0: vLLM's EngineCore process ended; it is started again, what it had begun starts "
        "again elsewhere",
        "engine/0 serves again",
    ]
