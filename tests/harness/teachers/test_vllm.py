"""The HTTP teacher against a stand-in for vLLM's server: what it asks, and how it may fail."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from harness.protocols import TeacherScores
from harness.teachers.protocol import ScoreRequest, TeacherError, check_scores
from harness.teachers.vllm import VllmTeacher

Answer = Callable[[dict[str, Any]], tuple[int, Any]]
REQUEST = ScoreRequest("a", [7, 3, 9, 4, 5], 3, 1.0)


def places(body: dict[str, Any]) -> list[Any]:
    """None for the first token, then the likeliest tokens and the prompt's own, of rank 40."""
    made: list[Any] = [None]
    for token in body["prompt"][1:]:
        top = {str(20 + r): entry(-1.0 - r, r) for r in range(1, body["prompt_logprobs"] + 1)}
        made.append(top | {str(token): entry(-0.5 * token, 40)})
    return made


def entry(logprob: float, rank: int) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": "?"}


def well(body: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"choices": [{"text": "x", "prompt_logprobs": places(body)}]}


@contextmanager
def server(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body | {"path": self.path})
            status, value = answer(body)
            text = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None: ...

    standing = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=standing.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{standing.server_port}", asked
    finally:
        standing.shutdown()
        standing.server_close()
        thread.join()


def score(url: str, request: ScoreRequest = REQUEST) -> TeacherScores:
    return asyncio.run(VllmTeacher(url, "big", timeout_s=5.0).score(request))


def test_the_prompt_s_own_tokens_are_read_at_their_places():
    with server(well) as (url, asked):
        scores = score(url + "/")
    assert scores == TeacherScores([-2.0, -2.5])
    assert asked == [
        {
            "path": "/v1/completions", "model": "big", "prompt": [7, 3, 9, 4, 5], "max_tokens": 1,
            "temperature": 1.0, "prompt_logprobs": 0,
        }
    ]  # fmt: skip


def test_the_likeliest_tokens_come_in_order_without_the_prompt_s_own():
    request = ScoreRequest("a", [7, 3, 9, 4, 5], 3, 1.0, top_k=3)
    with server(well) as (url, _):
        scores = score(url, request)
    check_scores(request, scores)
    assert scores.logprobs_N == [-2.0, -2.5]
    assert scores.top_tokens_NK == [[21, 22, 23]] * 2
    assert scores.top_logprobs_NK == [[-2.0, -3.0, -4.0]] * 2


def test_the_prompt_s_own_token_may_be_one_of_the_likeliest():
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        place = {"5": entry(-0.1, 1), "4": entry(-3.0, 2)}
        return 200, {"choices": [{"prompt_logprobs": [None, *[place] * 4]}]}

    request = ScoreRequest("a", [7, 3, 9, 4, 5], 3, 1.0, top_k=2)
    with server(answer) as (url, _):
        scores = score(url, request)
    assert scores == TeacherScores([-3.0, -0.1], [[5, 4]] * 2, [[-0.1, -3.0]] * 2)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda body: (503, b"loading"), "HTTP 503: loading"),
        (lambda body: (200, b"<html>"), "an answer without prompt_logprobs"),
        (lambda body: (200, {"choices": []}), "an answer without prompt_logprobs"),
        (lambda body: (200, {"choices": [{"text": "x"}]}), "an answer without prompt_logprobs"),
        (
            lambda body: (200, {"choices": [{"prompt_logprobs": None}]}),
            "an answer without prompt_logprobs",
        ),
        (
            lambda body: (200, {"choices": [{"prompt_logprobs": places(body)[:-1]}]}),
            "4 places for a prompt of 5 tokens",
        ),
        (
            lambda body: (200, {"choices": [{"prompt_logprobs": [None] * 5}]}),
            "no score of token 4 at its place",
        ),
    ],
)
def test_what_is_no_answer_is_a_failure_that_may_pass(answer: Answer, words: str):
    with server(answer) as (url, _), pytest.raises(TeacherError, match=words) as caught:
        score(url)
    assert not caught.value.final


def test_a_score_that_is_no_number_does_not_get_through():
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        text = json.dumps(well(body)[1]).replace("-2.5", "NaN")
        return 200, text.encode()

    with server(answer) as (url, _):
        scores = score(url)
    assert math.isnan(scores.logprobs_N[1])
    with pytest.raises(TeacherError, match="nan is no log-probability"):
        check_scores(REQUEST, scores)


def test_a_server_that_is_not_there_is_a_failure_that_may_pass():
    with server(well) as (url, _):
        pass
    with pytest.raises(TeacherError, match="refused"):
        score(url)


def test_a_request_is_an_interval_of_the_teacher():
    async def body(url: str) -> None:
        teacher = VllmTeacher(url, "big", timeout_s=5.0)
        await teacher.score(REQUEST)
        (interval,) = await teacher.drain_intervals()
        assert (interval.resource, interval.args["tokens"]) == ("teacher/0", 5)
        assert await teacher.drain_intervals() == []

    with server(well) as (url, _):
        asyncio.run(body(url))
