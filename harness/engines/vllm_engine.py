"""vLLM's AsyncLLM behind the Engine protocol, in a worker process of its own (docs/vllm.md).

Token ids in and out; log-probabilities are those of the distribution that was sampled from; a
token's version is vLLM's own label of the weights that made it. New weights go through vLLM's
weight-transfer API, in one order (`update_weights`). What vLLM computes in its EngineCore process
is not seen from here: the engine counts as busy while a request is with it and it is not paused.
"""

from __future__ import annotations

import importlib
import itertools
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.engines import vllm_files
from harness.engines.vllm_options import VllmOptions, environment
from harness.protocols import Completion, Generation, Interval, VersionSpan
from harness.rollout import derive_seed


@dataclass(eq=False)
class _Session:
    """`generated` counts its sampled tokens over all turns; `request` is under way."""

    generated: int = 0
    request: str | None = None


@dataclass
class _Busy:
    """Since when requests are with vLLM, and what has come of them since."""

    since_s: float | None = None
    generated: int = 0
    read: int = 0
    intervals: list[Interval] = field(default_factory=list)


class VllmEngine:
    """The service. `api` is harness.engines.vllm_api, or what stands for it."""

    def __init__(self, options: VllmOptions, name: str = "engine/0", api: Any = None) -> None:
        self._options = options
        self._name = name
        self._folder: Path | None = None
        if api is None:
            self._folder = vllm_files.make_folder()
            api = _vllm(options, self._folder)
        self._api = api
        self._llm: Any = None
        self._sessions: dict[str, _Session] = {}
        self._numbers = itertools.count()
        self._running = 0
        self._paused = False
        self._busy = _Busy()

    async def start(self) -> None:
        """Start vLLM with the policy's weights as version 0."""
        self._llm = self._api.start(self._options)
        await self._llm.update_weight_version("0")

    async def generate(self, request: Generation) -> Completion:
        """Raises ValueError for a request that could never be served."""
        self._check(request)
        session = self._sessions.setdefault(request.session, _Session())
        if session.request is not None:
            raise ValueError(f"session {request.session}: a request is already under way")
        session.request = f"{request.session}#{next(self._numbers)}"
        self._enter()
        output = None
        try:
            async for ended in self._llm.generate(
                {"prompt_token_ids": list(request.prompt_T)},
                self._api.sampling(request, derive_seed(request.seed, "vllm", session.generated)),
                session.request,
            ):
                output = ended  # there is one
        finally:
            session.request = None
            self._leave(output)
        answer = _completion(output)
        session.generated += len(answer.tokens_T)
        return answer

    async def release(self, session: str) -> None:
        """Forget a session. A request under way is answered with what it has so far."""
        gone = self._sessions.pop(session, None)
        if gone is not None and gone.request is not None:
            await self._llm.abort(gone.request)

    async def update_weights(self, path: str, version: int, in_flight: bool = True) -> None:
        """Pause, take the file, clear what older weights have cached, go on. `in_flight` freezes
        requests between two tokens, and vLLM reads their contexts anew; otherwise they end first
        while newer ones wait. After a failure it stays paused: half of the weights may be new."""
        llm = self._llm
        await llm.pause_generation(mode="keep" if in_flight else "wait", clear_cache=True)
        self._pause()
        await llm.start_weight_update()
        await llm.update_weights(self._api.transfer(path))
        await llm.finish_weight_update(weight_version=str(version))
        if not await llm.reset_prefix_cache():
            raise RuntimeError(f"version {version}: vLLM kept keys and values of older weights")
        self._resume()
        await llm.resume_generation()

    async def drain_intervals(self) -> list[Interval]:
        self._cut()
        drained, self._busy.intervals = self._busy.intervals, []
        return drained

    async def close(self) -> None:
        if self._llm is not None:
            self._llm.shutdown(timeout=0.5)  # nothing there is to be saved
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- what it was busy with ---------------------------------------------------------------------

    def _check(self, request: Generation) -> None:
        name, prompt = request.session, len(request.prompt_T)
        if request.forced_T is not None:
            raise ValueError(f"session {name}: vLLM samples its tokens, it cannot replay any")
        if not prompt or request.max_new_tokens < 1:
            raise ValueError(f"session {name}: an empty prompt or no token to generate")
        if prompt + request.max_new_tokens > self._options.max_context:
            raise ValueError(
                f"session {name}: a prompt of {prompt} and {request.max_new_tokens} new tokens "
                f"exceed max_context={self._options.max_context}"
            )

    def _enter(self) -> None:
        self._running += 1
        if self._running == 1 and not self._paused:
            self._busy.since_s = time.monotonic()

    def _leave(self, output: Any) -> None:
        if output is not None:
            self._busy.generated += len(output.outputs[0].token_ids)
            self._busy.read += len(output.prompt_token_ids) - (output.num_cached_tokens or 0)
        if self._running == 1:
            self._cut()
            self._busy.since_s = None
        self._running -= 1

    def _pause(self) -> None:
        self._cut()
        self._paused, self._busy.since_s = True, None

    def _resume(self) -> None:
        self._paused = False
        if self._running:
            self._busy.since_s = time.monotonic()

    def _cut(self) -> None:
        """Close the interval that is open, and begin another."""
        busy = self._busy
        if busy.since_s is None:
            return
        now_s = time.monotonic()
        made = {"generated_tokens": busy.generated, "prompt_tokens": busy.read}
        busy.intervals.append(Interval(self._name, "generate", busy.since_s, now_s, made))
        busy.since_s, busy.generated, busy.read = now_s, 0, 0


def _vllm(options: VllmOptions, folder: Path) -> Any:
    """harness.engines.vllm_api, whose import reads the environment."""
    os.environ.update(environment(options), **{vllm_files.VARIABLE: str(folder)})
    return importlib.import_module("harness.engines.vllm_api")


def _completion(output: Any) -> Completion:
    made = output.outputs[0]
    tokens = list(made.token_ids)
    places = zip(tokens, made.logprobs or (), strict=True)
    return Completion(
        tokens,
        [place[token].logprob for token, place in places],
        [VersionSpan(int(s.version), s.start, s.end) for s in made.weight_versions or ()],
        "stop" if made.finish_reason == "stop" else "length",  # an aborted one has no room left
    )
