"""teacher=vllm against a real server: its scores are those of the teacher's weights."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest
import torch

from harness.engines.vllm_options import VllmOptions, environment
from harness.policy.load import load_for_training, resolve
from harness.protocols import TeacherScores
from harness.teachers.protocol import ScoreRequest
from harness.teachers.vllm import VllmTeacher

FOLDER = resolve("tiny_teacher")
CLOSE = 1e-4


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(FOLDER),
            "--served-model-name", "teacher", "--host", "127.0.0.1", "--port", str(port),
            "--dtype", "float32", "--enforce-eager", "--max-model-len", "640",
            "--kv-cache-memory-bytes", str(1 << 28), "--block-size", "32",
        ],
        env=os.environ | environment(VllmOptions(str(FOLDER), 4, 640)),
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 800
        while not _healthy(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=60)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.mark.parametrize("top_k", [0, 5])
def test_a_turn_is_scored(url: str, top_k: int) -> None:
    tokens = list(range(30, 130))
    teacher = VllmTeacher(url, "teacher", timeout_s=120)
    request = ScoreRequest("s", tokens, 60, temperature=1.0, top_k=top_k)
    scores: TeacherScores = asyncio.run(teacher.score(request))
    model = load_for_training(FOLDER, torch.float32).eval()
    with torch.inference_mode():
        logprobs = model(torch.tensor([tokens])).logits[0, 59:-1].log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(tokens[60:])[:, None])[:, 0]
    assert scores.logprobs_N == pytest.approx(chosen.tolist(), abs=CLOSE)
    if top_k:
        best = logprobs.topk(top_k)
        assert scores.top_tokens_NK == best.indices.tolist()
        found = torch.tensor(scores.top_logprobs_NK)
        torch.testing.assert_close(found, best.values, atol=CLOSE, rtol=0)
