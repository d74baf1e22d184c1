"""The torch engine: continuous batching at token granularity, in its own process.

Every call of `work` is one fused step (harness.policy.decoder, or harness.policy.any_decoder for
models that it does not compute): all running sessions advance by one
token while newcomers' prompts are read in chunks. A session keeps its slot between turns, so that a
turn costs only its new tokens; when all slots are taken, requests wait in order, and the session
that has been idle longest gives its slot up and is read again later. Decoding slots are the lowest
ones, because a step computes every slot up to the highest that decodes.

docs/engine.md has its speed beside that of other engines.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from harness.engines.sampling import sample, uniforms
from harness.policy.any_decoder import AnyDecoder
from harness.policy.architecture import fused
from harness.policy.decoder import Chunk, Decoder
from harness.protocols import Completion, Generation, Interval, VersionSpan

Reply = Callable[[Completion], None]

# Steps that follow each other this closely are one busy interval: between them the worker only
# looks for new requests.
_MERGE_S = 0.001


@dataclass(eq=False)
class _Running:
    """A request under way."""

    generation: Generation
    reply: Reply
    limit: int
    tokens_T: list[int] = field(default_factory=list)
    logprobs_T: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


@dataclass(eq=False)
class _Session:
    """`context` is all tokens so far; the keys and values of its first `cached` tokens are in
    `slot`. `generated` counts sampled tokens over all turns: the sampler's position."""

    name: str
    context: list[int] = field(default_factory=list)
    cached: int = 0
    slot: int | None = None
    generated: int = 0
    used: int = 0
    running: _Running | None = None


@dataclass(eq=False)
class _Update:
    """Weights that wait for what decodes with the old ones."""

    reply: Callable[[None], None]
    weights: dict[str, torch.Tensor]
    version: int


@dataclass(eq=False)
class _Busy:
    """Steps without a pause between them."""

    started_s: float
    ended_s: float
    generated: int
    read: int


class TorchEngine:
    """The service. `prompt_tokens` bounds how many prompt tokens one step reads."""

    def __init__(
        self,
        path: str,
        slots: int,
        max_context: int,
        threads: int = 1,
        name: str = "engine/0",
        prompt_tokens: int = 512,
    ) -> None:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            kind = Decoder if fused(Path(path)) else AnyDecoder
            self._decoder = kind(path, slots=slots, max_context=max_context)
        self._vocab_size = self._decoder.config.vocab_size
        self._max_context = max_context
        self._name = name
        self._prompt_tokens = prompt_tokens
        self._sessions: dict[str, _Session] = {}
        self._by_slot: list[_Session | None] = [None] * slots
        self._active: list[_Session] = []
        self._waiting: deque[_Session] = deque()
        self._version = 0
        self._update: _Update | None = None
        self._tick = 0
        self._busy: list[_Busy] = []

    # -- verbs -------------------------------------------------------------------------------------

    def generate(self, reply: Reply, request: Generation) -> None:
        """Queue a request. Raises ValueError for one that could never be served."""
        limit = request.max_new_tokens if request.forced_T is None else len(request.forced_T)
        prompt = list(request.prompt_T)
        if not prompt or limit < 1:
            raise ValueError(f"session {request.session}: an empty prompt or no token to generate")
        if len(prompt) + limit > self._max_context:
            raise ValueError(
                f"session {request.session}: a prompt of {len(prompt)} and {limit} new tokens "
                f"exceed max_context={self._max_context}"
            )
        if min(prompt) < 0 or max(prompt) >= self._vocab_size:
            raise ValueError(f"session {request.session}: a token outside the vocabulary")
        session = self._sessions.setdefault(request.session, _Session(request.session))
        if session.running is not None:
            raise ValueError(f"session {request.session}: a request is already under way")
        # The last prompt token is always fed again: its hidden state gives the first logits.
        reused = min(session.cached, len(prompt) - 1)
        if session.context[:reused] != prompt[:reused]:
            pairs = zip(session.context, prompt, strict=False)
            reused = next(i for i, (old, new) in enumerate(pairs) if old != new)
        session.context, session.cached = prompt, reused
        session.running = _Running(request, reply, limit)
        if self._update is not None:  # what it holds will be of old weights when its turn comes
            self._evict(session)
        if session.slot is None:
            self._waiting.append(session)
        else:
            self._active.append(session)

    def release(self, session: str) -> None:
        """Forget a session. A request under way is answered with what it has so far."""
        gone = self._sessions.pop(session, None)
        if gone is None:
            return
        if gone.running is not None:
            self._finish(gone, gone.running, "length")
        if gone.slot is not None:
            self._by_slot[gone.slot] = None

    def update_weights(
        self, reply: Callable[[None], None], path: str, version: int, in_flight: bool = True
    ) -> None:
        """Take new weights: between two tokens, or else as soon as what decodes now has ended,
        while newer requests wait. No key or value of the old ones is used again: sessions go on
        after their context has been read anew. Answers when they are loaded."""
        if self._update is not None:
            raise ValueError(f"version {version}: version {self._update.version} is still to come")
        with torch.inference_mode():
            update = _Update(reply, self._decoder.read(path), version)
        if in_flight or not self._active:
            self._swap(update)
        else:
            self._update = update

    def _swap(self, update: _Update) -> None:
        self._update = None
        with torch.inference_mode():
            self._decoder.take(update.weights)
        self._version = update.version
        for session in self._sessions.values():
            session.cached = 0
            if session.running is None:
                self._evict(session)
        update.reply(None)

    def _evict(self, session: _Session) -> None:
        """Take a session's slot away; what it held is read again."""
        if session.slot is not None:
            self._by_slot[session.slot] = None
        session.slot, session.cached = None, 0

    def drain_intervals(self) -> list[Interval]:
        drained, self._busy = self._busy, []
        return [
            Interval(
                self._name, "generate", busy.started_s, busy.ended_s,
                {"generated_tokens": busy.generated, "prompt_tokens": busy.read},
            )
            for busy in drained
        ]  # fmt: skip

    # -- the step ----------------------------------------------------------------------------------

    def has_work(self) -> bool:
        return bool(self._active or self._waiting or self._update)

    @torch.inference_mode()
    def work(self) -> None:
        """One step: a token for every decoding session, a piece of prompt for reading ones. An
        update that waits for what decodes is made once that has ended."""
        if self._update is not None and not self._active:
            self._swap(self._update)
            return
        started_s = time.monotonic()
        self._admit()
        decoders = [s for s in self._active if len(s.context) - s.cached == 1]
        self._compact(decoders)
        chunks, readers = self._chunks()
        span = 1 + max((_slot(s) for s in decoders), default=-1)
        tokens, positions = [0] * span, [self._max_context] * span
        for session in decoders:
            tokens[_slot(session)] = session.context[-1]
            positions[_slot(session)] = session.cached
        slots = list(range(span))
        for session, chunk in zip(readers, chunks, strict=True):
            end = chunk.start + chunk.length
            tokens += session.context[chunk.start : end]
            positions += range(chunk.start, end)
            slots += [chunk.slot] * chunk.length
        read = len(tokens) - span
        fed = torch.from_numpy(np.array((tokens, positions, slots)))
        hidden = self._decoder.forward(
            *fed,
            decoding=span,
            used=1 + max((s.cached for s in decoders), default=-1),
            chunks=chunks,
        )  # fmt: skip
        speakers, rows = list(decoders), [_slot(s) for s in decoders]
        for session in decoders:
            session.cached += 1
        for row, (session, chunk) in enumerate(zip(readers, chunks, strict=True), start=span):
            session.cached += chunk.length
            if session.cached == len(session.context):  # its prompt is read: it speaks at once
                speakers.append(session)
                rows.append(row)
        if speakers:
            self._speak(speakers, hidden[torch.tensor(rows)])
        self._record(started_s, len(speakers), read)

    def _admit(self) -> None:
        """Give slots to waiting sessions, in order: a free one, else that of the longest idle; none
        while an update waits."""
        while self._waiting and self._update is None:
            slot = next((i for i, s in enumerate(self._by_slot) if s is None), None)
            if slot is None:
                idle = [s for s in self._by_slot if s is not None and s.running is None]
                if not idle:
                    return
                evicted = min(idle, key=lambda s: s.used)
                slot, evicted.slot, evicted.cached = _slot(evicted), None, 0
            session = self._waiting.popleft()
            session.slot, self._by_slot[slot] = slot, session
            self._active.append(session)

    def _compact(self, decoders: Sequence[_Session]) -> None:
        """Bring decoding sessions down, so that few of a step's rows are idle; a little waste is
        cheaper than moving keys and values (0.3 ms for a context of 200)."""
        bound = len(decoders) + len(decoders) // 8 + 1
        taken = {_slot(s) for s in decoders}
        free = (slot for slot in range(len(self._by_slot)) if slot not in taken)
        for session in decoders:
            if _slot(session) >= bound:
                old, new = _slot(session), next(free)
                other = self._by_slot[new]
                self._decoder.swap(old, new, max(session.cached, other.cached if other else 0))
                session.slot, self._by_slot[new] = new, session
                self._by_slot[old] = other
                if other is not None:
                    other.slot = old

    def _chunks(self) -> tuple[list[Chunk], list[_Session]]:
        """The next pieces of unread context, oldest request first, within the step's bound."""
        chunks: list[Chunk] = []
        readers: list[_Session] = []
        room = self._prompt_tokens
        for session in self._active:
            unread = len(session.context) - session.cached
            if unread > 1 and room > 0:
                length = min(unread, room)
                chunks.append(Chunk(_slot(session), session.cached, length))
                readers.append(session)
                room -= length
        return chunks, readers

    def _speak(self, sessions: Sequence[_Session], hidden_M: torch.Tensor) -> None:
        """Sample (or replay) one token for each session, and answer those that are done."""
        runs = [(s, s.running) for s in sessions if s.running is not None]
        logits = self._decoder.logits(hidden_M)
        tokens_M, logprobs_MV = sample(
            logits,
            torch.tensor([run.generation.temperature for _, run in runs], dtype=logits.dtype),
            torch.from_numpy(
                uniforms(
                    np.array([run.generation.seed for _, run in runs], dtype=np.uint64),
                    np.array([s.generated for s, _ in runs], dtype=np.uint64),
                )
            ),
        )
        for row, (_, run) in enumerate(runs):
            if run.generation.forced_T is not None:
                tokens_M[row] = run.generation.forced_T[len(run.tokens_T)]
        logprobs = logprobs_MV.gather(1, tokens_M[:, None])[:, 0].tolist()
        for (session, run), token, logprob in zip(runs, tokens_M.tolist(), logprobs, strict=True):
            session.context.append(token)
            session.generated += 1
            run.tokens_T.append(token)
            run.logprobs_T.append(logprob)
            run.versions.append(self._version)
            if token in run.generation.stop_tokens and run.generation.forced_T is None:
                self._finish(session, run, "stop")
            elif len(run.tokens_T) == run.limit:
                forced = run.generation.forced_T is not None
                stopped = forced and token in run.generation.stop_tokens
                self._finish(session, run, "stop" if stopped else "length")

    def _finish(self, session: _Session, run: _Running, finish: Literal["stop", "length"]) -> None:
        (self._waiting if session.slot is None else self._active).remove(session)
        session.running = None
        self._tick += 1
        session.used = self._tick
        run.reply(Completion(run.tokens_T, run.logprobs_T, _spans(run.versions), finish))

    def _record(self, started_s: float, generated: int, read: int) -> None:
        ended_s = time.monotonic()
        if self._busy and started_s - self._busy[-1].ended_s < _MERGE_S:
            last = self._busy[-1]
            last.ended_s = ended_s
            last.generated += generated
            last.read += read
        else:
            self._busy.append(_Busy(started_s, ended_s, generated, read))


def _slot(session: _Session) -> int:
    assert session.slot is not None
    return session.slot


def _spans(versions_T: Sequence[int]) -> list[VersionSpan]:
    """Runs of equal versions."""
    spans: list[VersionSpan] = []
    start = 0
    for version, run in itertools.groupby(versions_T):
        end = start + len(list(run))
        spans.append(VersionSpan(version, start, end))
        start = end
    return spans
