"""A teacher behind an OpenAI-style server with vLLM's `prompt_logprobs`, over HTTP. Torch-free.

Tested against a stand-in of a few lines, and against a real server on a CPU (`tox -e vllm`). It is
asked for one token that nobody reads, because a completion needs one. Its prompt log-probabilities
are those at temperature 1, whatever the request's temperature says: another scoring temperature is
refused at start.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from harness.protocols import Interval, TeacherScores
from harness.teachers.protocol import ScoreRequest, TeacherError


class VllmTeacher:
    """`model` is the server's name for it; `timeout_s` bounds each request's connection."""

    def __init__(self, url: str, model: str, timeout_s: float) -> None:
        self._url = f"{url.rstrip('/')}/v1/completions"
        self._model = model
        self._timeout_s = timeout_s
        self._intervals: list[Interval] = []

    async def start(self) -> None:
        """A server that is not there yet is a failure like any later one: its turns wait."""

    async def score(self, request: ScoreRequest) -> TeacherScores:
        began_s = time.monotonic()
        body = {
            "model": self._model,
            "prompt": list(request.tokens_T),
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": request.top_k,
        }
        places = await asyncio.to_thread(self._ask, body)
        args = {"trajectory": request.session, "tokens": request.end}
        self._intervals.append(Interval("teacher/0", "score", began_s, time.monotonic(), args))
        if len(places) < request.end:
            raise TeacherError(f"{len(places)} places for a prompt of {request.end} tokens")
        scores = TeacherScores()
        for token, place in zip(
            request.tokens_T[request.start :], places[request.start : request.end], strict=True
        ):
            scores.extend(_place(token, place, request.top_k))
        return scores

    def _ask(self, body: Mapping[str, Any]) -> list[Any]:
        """The prompt's places, as the server lists them. Raises TeacherError for all that a server
        on its way down or up may do."""
        asked = urllib.request.Request(
            self._url, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=self._timeout_s) as answer:
                places = json.load(answer)["choices"][0]["prompt_logprobs"]
        except urllib.error.HTTPError as error:
            said = error.read(300).decode(errors="replace")
            raise TeacherError(f"{self._url}: HTTP {error.code}: {said}") from error
        except (OSError, http.client.HTTPException) as error:
            raise TeacherError(f"{self._url}: {error}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise TeacherError(f"{self._url}: an answer without prompt_logprobs") from error
        if not isinstance(places, list):
            raise TeacherError(f"{self._url}: an answer without prompt_logprobs")
        return places

    async def release(self, session: str) -> None:
        """The server's own cache decides."""

    async def drain_intervals(self) -> list[Interval]:
        """From request to answer: what the server did meanwhile is its own."""
        drained, self._intervals = self._intervals, []
        return drained

    async def close(self) -> None:
        """Nothing is held."""


def _place(token: int, place: Any, top_k: int) -> TeacherScores:
    """One place: token id (as text) -> {"logprob", "rank"}; the prompt's own token is there beside
    the likeliest ones."""
    try:
        known = {int(name): (int(v["rank"]), float(v["logprob"])) for name, v in place.items()}
        chosen = known[token][1]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise TeacherError(f"no score of token {token} at its place") from error
    if not top_k:
        return TeacherScores([chosen])
    ranked = sorted((rank, name, p) for name, (rank, p) in known.items() if rank <= top_k)[:top_k]
    return TeacherScores([chosen], [[name for _, name, _ in ranked]], [[p for *_, p in ranked]])
