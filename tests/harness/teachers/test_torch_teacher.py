"""The torch teacher's scores are those of one forward over all tokens, and its process may die."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.teachers.client import TorchTeacherClient
from harness.teachers.protocol import ScoreRequest, TeacherError, check_scores
from harness.teachers.torch_teacher import TorchTeacher

VOCABULARY = 97


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "intermediate_size": 48, "tie_word_embeddings": True,
    }  # fmt: skip
    if request.param == "qwen3":
        model: Any = Qwen3ForCausalLM(Qwen3Config(**shape))
    else:
        model = LlamaForCausalLM(LlamaConfig(**shape))
    with torch.no_grad():  # away from the uniform start, so that a wrong context is seen
        for parameter in model.parameters():
            parameter.mul_(3.0)
    path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path)
    return path


def whole(folder: Path, request: ScoreRequest) -> torch.Tensor:
    """Log-probabilities over the vocabulary at the scored places, in one forward."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(request.tokens_T)])).logits[0]
    return (logits[request.start - 1 : -1] / request.temperature).log_softmax(-1)


def tokens(seed: int, count: int = 60) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(count)]


def ask(session: str, given: list[int], start: int, end: int, top_k: int = 0) -> ScoreRequest:
    return ScoreRequest(session, given[:end], start, 0.8, top_k)


def agrees(folder: Path, teacher: TorchTeacher, request: ScoreRequest) -> None:
    scores = teacher.score(request)
    check_scores(request, scores)
    expected = whole(folder, request)
    chosen = expected.gather(1, torch.tensor(request.tokens_T[request.start :])[:, None])[:, 0]
    assert torch.tensor(scores.logprobs_N) == pytest.approx(chosen, abs=2e-5)
    if request.top_k:
        named = torch.tensor(scores.top_tokens_NK)
        found = torch.tensor(scores.top_logprobs_NK)
        assert found == pytest.approx(expected.gather(1, named), abs=2e-5)
        assert found == pytest.approx(expected.topk(request.top_k, -1).values, abs=2e-5)


TURNS = [(5, 9), (14, 15), (20, 33), (34, 60)]


def test_turns_in_order_cost_their_own_tokens_and_agree_with_one_forward(folder: Path):
    teacher, given = TorchTeacher(str(folder)), tokens(0)
    for start, end in TURNS:
        agrees(folder, teacher, ask("a", given, start, end, top_k=5))
    fed = [interval.args["tokens"] for interval in teacher.drain_intervals()]
    assert fed == [8, 6, 18, 27]
    assert teacher.drain_intervals() == []


def test_sessions_do_not_mix_and_may_be_forgotten(folder: Path):
    teacher = TorchTeacher(str(folder), sessions=1)
    first, second = tokens(1), tokens(2)
    for start, end in TURNS:
        agrees(folder, teacher, ask("a", first, start, end))
        agrees(folder, teacher, ask("b", second, start, end))
    teacher.release("b")
    agrees(folder, teacher, ask("b", second, 50, 60))


def test_what_is_kept_decides_nothing(folder: Path):
    """The same turn again, an earlier one, and a session whose tokens have changed."""
    teacher, given = TorchTeacher(str(folder)), tokens(3)
    rewritten = [*given[:18], *tokens(4)[18:]]
    agrees(folder, teacher, ask("a", given, 34, 60))
    agrees(folder, teacher, ask("a", given, 34, 60))
    agrees(folder, teacher, ask("a", given, 14, 15))
    agrees(folder, teacher, ask("a", rewritten, 20, 33))
    agrees(folder, teacher, ask("a", tokens(5), 1, 4))


@pytest.mark.parametrize(  # whatever the model
    "folder", ["qwen3", pytest.param("llama", marks=pytest.mark.slow)], indirect=True
)
def test_a_killed_teacher_fails_its_requests_and_is_started_again(folder: Path):
    given = tokens(0)

    async def body() -> None:
        client = TorchTeacherClient(folder, sessions=4)
        await client.start()
        try:
            before = await client.score(ask("a", given, 5, 9))
            first = client.pid
            os.kill(first, signal.SIGKILL)
            asked = [client.score(ask(name, given, 14, 20)) for name in "ab"]
            failed = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(e, TeacherError) for e in failed)
            assert client.restarts == 1
            assert client.pid != first
            again = await client.score(ask("a", given, 5, 9))
            assert again == before
            assert len(await client.drain_intervals()) == 1
        finally:
            await client.close()

    asyncio.run(body())
