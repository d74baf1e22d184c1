"""What engine=vllm says to vLLM and in which order, beside a stand-in: the real one is in
tests/vllm, on a CPU; on a GPU nothing of it was run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from harness.composition import compose
from harness.engines import select
from harness.engines.vllm_engine import VllmEngine
from harness.engines.vllm_options import BLOCK_TOKENS, VllmOptions, arguments, environment
from harness.policy.load import resolve
from harness.protocols import Generation, UsageError
from harness.validation import validate

OPTIONS = VllmOptions(path=str(resolve("tiny")), slots=4, max_context=64)


class Llm:
    """AsyncLLM's verbs, written down. A request makes tokens 7, 7, ... until it is let go."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.go = asyncio.Event()
        self.clears = True

    def __getattr__(self, name: str) -> Any:
        async def verb(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, *args, *sorted(kwargs.items())))
            await asyncio.sleep(0)
            if name == "abort":
                self.go.set()
            return self.clears if name == "reset_prefix_cache" else None

        return verb

    def shutdown(self, timeout: float) -> None:
        self.calls.append("shutdown")

    async def generate(self, prompt: Any, sampling: Any, name: str) -> AsyncIterator[Any]:
        self.calls.append(("generate", name, sampling))
        await self.go.wait()
        made = SimpleNamespace(
            token_ids=[7, 2],
            logprobs=[{7: SimpleNamespace(logprob=-0.5)}, {2: SimpleNamespace(logprob=-0.25)}],
            weight_versions=[SimpleNamespace(version="3", start=0, end=2)],
            finish_reason="stop",
        )
        yield SimpleNamespace(
            outputs=[made], prompt_token_ids=prompt["prompt_token_ids"], num_cached_tokens=2
        )


def play(scenario: Any) -> Llm:
    """Run `scenario(engine, llm)` beside a stand-in that has started."""

    async def run() -> Llm:
        llm = Llm()
        api = SimpleNamespace(
            start=lambda options: llm,
            sampling=lambda request, seed: seed,
            transfer=lambda path: {"path": path},
        )
        engine = VllmEngine(OPTIONS, api=api)
        await engine.start()
        assert llm.calls == [("update_weight_version", "0")]
        llm.calls.clear()
        await scenario(engine, llm)
        return llm

    return asyncio.run(run())


def ask(session: str = "s", prompt: int = 3, **changed: Any) -> Generation:
    return Generation(session, [1] * prompt, 9, 1.0, 3, (2,), **changed)


@pytest.mark.parametrize(("in_flight", "mode"), [(True, "keep"), (False, "wait")])
def test_new_weights_come_in_one_order(in_flight: bool, mode: str) -> None:
    async def scenario(engine: VllmEngine, llm: Llm) -> None:
        await engine.update_weights("w.safetensors", 7, in_flight)

    assert play(scenario).calls == [
        ("pause_generation", ("clear_cache", True), ("mode", mode)),
        ("start_weight_update",),
        ("update_weights", {"path": "w.safetensors"}),
        ("finish_weight_update", ("weight_version", "7")),
        ("reset_prefix_cache",),
        ("resume_generation",),
    ]


def test_nothing_goes_on_with_keys_and_values_of_older_weights() -> None:
    async def scenario(engine: VllmEngine, llm: Llm) -> None:
        llm.clears = False
        with pytest.raises(RuntimeError, match="version 7: vLLM kept keys and values"):
            await engine.update_weights("w", 7)

    assert "resume_generation" not in [name for name, *_ in play(scenario).calls]


def test_a_session_counts_its_tokens_and_the_engine_what_it_did() -> None:
    async def scenario(engine: VllmEngine, llm: Llm) -> None:
        running = asyncio.create_task(engine.generate(ask()))
        await asyncio.sleep(0.01)
        with pytest.raises(ValueError, match="already under way"):
            await engine.generate(ask())
        (open_,) = await engine.drain_intervals()  # in the middle of a request
        assert open_.args == {"generated_tokens": 0, "prompt_tokens": 0}
        await engine.update_weights("w", 3)
        llm.go.set()
        answer = await running
        assert (answer.tokens_T, answer.logprobs_T, answer.finish) == (
            [7, 2],
            [-0.5, -0.25],
            "stop",
        )
        assert [(s.version, s.start, s.end) for s in answer.version_spans] == [(3, 0, 2)]
        before, after = await engine.drain_intervals()  # it was not busy while it took weights
        assert open_.end_s == before.start_s < before.end_s < after.start_s
        assert after.args == {"generated_tokens": 2, "prompt_tokens": 1}
        await engine.generate(ask())  # the next turn draws on
        await engine.generate(ask("t"))  # another session with that seed is at its beginning
        assert len(await engine.drain_intervals()) == 2

    first, second, third = [c for c in play(scenario).calls if c[0] == "generate"]
    assert first[2] == third[2] != second[2]
    assert len({first[1], second[1], third[1]}) == 3


def test_a_session_that_is_let_go_is_answered_with_what_it_has() -> None:
    async def scenario(engine: VllmEngine, llm: Llm) -> None:
        running = asyncio.create_task(engine.generate(ask()))
        await asyncio.sleep(0.01)
        await engine.release("s")
        await engine.release("s")
        assert (await running).tokens_T == [7, 2]
        await engine.close()

    calls = play(scenario).calls
    assert [c for c in calls if c[0] == "abort"] == [("abort", calls[0][1])]
    assert calls[-1] == "shutdown"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ask(prompt=0), "an empty prompt"),
        (ask(prompt=60), "a prompt of 60 and 9 new tokens exceed max_context=64"),
        (ask(forced_T=[1]), "cannot replay"),
    ],
)
def test_what_cannot_be_served_never_reaches_vllm(request_: Generation, words: str) -> None:
    async def scenario(engine: VllmEngine, llm: Llm) -> None:
        with pytest.raises(ValueError, match=words):
            await engine.generate(request_)

    assert play(scenario).calls == []


def test_how_vllm_is_started() -> None:
    given = arguments(OPTIONS)
    assert given["logprobs_mode"] == "processed_logprobs"
    # 4 layers x 4 heads x 32 numbers of 4 bytes, keys and values; 4 sequences of 3 blocks, twice.
    assert given["kv_cache_memory_bytes"] == 2 * 4 * 3 * BLOCK_TOKENS * 4096
    gpu = VllmOptions(OPTIONS.path, 4, 64, device="cuda", dtype="bfloat16", gpus="2",
                      arguments={"gpu_memory_utilization": 0.5})  # fmt: skip
    assert "kv_cache_memory_bytes" not in arguments(gpu)
    assert arguments(gpu)["gpu_memory_utilization"] == 0.5
    assert environment(gpu)["CUDA_VISIBLE_DEVICES"] == "2"
    assert "CUDA_VISIBLE_DEVICES" not in environment(OPTIONS)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["engine=vllm"], r"^engine=vllm: vLLM is not installed; pip install -c constraints-vllm"),
        (["engine=vllm", "engine.device=cuda"], r"not installed; pip install -e '\.\[vllm\]'"),
        (
            ["engine=vllm", "+engine.arguments={seed: 3}"],
            "seed is set by the harness; leave it out$",
        ),
        (["engine=vllm", "replay=README.md"], "has the engine decode recorded tokens"),
        (["engine=vllm", "env=simulated"], "^engine.name=vllm: env=simulated runs with simulated"),
        (["engine=vllm", "env=swebench_virtual"], "^engine.name=vllm: .* takes torch alone"),
        (["engine=vllm", "schedule=sync_colocated", "engine.device=cuda"], "memory of a GPU"),
        (["engine.dtype=bfloat16"], "^engine.dtype=bfloat16: engine=torch decodes on the CPU in"),
        (["engine.device=cuda"], "^engine.device=cuda: engine=torch decodes on the CPU in"),
    ],
)
def test_what_it_cannot_do_is_one_line(
    overrides: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select.importlib.util, "find_spec", _without_vllm(select))
    with pytest.raises(UsageError, match=words) as raised:
        validate(compose(overrides))
    assert "\n" not in str(raised.value)


def _without_vllm(module: Any) -> Any:
    """This machine's packages less vLLM, which tox -e vllm has."""
    real = module.importlib.util.find_spec
    return lambda name, *rest: None if name == "vllm" else real(name, *rest)
