"""The engine in its own process."""

import asyncio
import os
from pathlib import Path

import pytest

from harness.cluster.local import WorkerError
from harness.engines.client import TorchEngineClient
from harness.engines.torch_engine import TorchEngine
from harness.protocols import Generation, UsageError


def ask(session: str, prompt: list[int], new: int) -> Generation:
    return Generation(session, prompt, new, temperature=1.0, seed=3, stop_tokens=())


def test_a_process_serves_the_protocol_and_leaves_nothing(policy: Path, other_policy: Path) -> None:
    here = TorchEngine(str(policy), slots=4, max_context=64)
    expected = []
    here.generate(expected.append, ask("s0", [1, 2, 3], 9))
    while here.has_work():
        here.work()

    async def scenario() -> int:
        client = TorchEngineClient(policy, slots=4, max_context=64)
        await client.start()
        try:
            answers = await asyncio.gather(
                *(client.generate(ask(f"s{i}", [1, 2, 3], 9)) for i in range(6))
            )
            assert [a.tokens_T for a in answers] == [expected[0].tokens_T] * 6
            with pytest.raises(WorkerError, match="max_context=64"):
                await client.generate(ask("long", [1] * 60, 9))
            await client.update_weights(str(other_policy / "model.safetensors"), 2)
            await client.release("s0")
            changed = await client.generate(ask("s0", [1, 2, 3], 9))
            assert changed.tokens_T != expected[0].tokens_T
            assert [s.version for s in changed.version_spans] == [2]
            busy = await client.drain_intervals()
            assert sum(i.args["generated_tokens"] for i in busy) == 63
            return client.pid
        finally:
            await client.close()

    pid = asyncio.run(scenario())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_missing_policy_is_reported_at_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        client = TorchEngineClient(tmp_path / "none", slots=1, max_context=8)
        try:
            await client.start()
        finally:
            await client.close()

    with pytest.raises(UsageError, match=r"no causal language model of transformers"):
        asyncio.run(scenario())
