"""The torch teacher: a frozen causal language model that scores tokens, in its own process.

A session keeps the keys and values of what was scored, so that a turn costs its own tokens and the
observation before it. Any request is answered from scratch where they are gone, or are of other
tokens: what is kept saves time and decides nothing.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import log_softmax
from transformers import DynamicCache

from harness.policy.head import Head
from harness.policy.load import load_for_training
from harness.protocols import Interval, TeacherScores
from harness.teachers.protocol import ScoreRequest


class TorchTeacher:
    """The service. `sessions` is how many it keeps; the one used longest ago goes first."""

    def __init__(
        self, path: str, sessions: int = 64, threads: int = 1, name: str = "teacher/0"
    ) -> None:
        torch.set_num_threads(threads)
        model = load_for_training(Path(path), torch.float32)
        self._model: Any = model.eval().requires_grad_(False)
        self._name = name
        self._most = sessions
        self._kept: OrderedDict[str, tuple[list[int], DynamicCache]] = OrderedDict()
        self._intervals: list[Interval] = []

    def score(self, request: ScoreRequest) -> TeacherScores:
        """Of the tokens from `start` on."""
        began_s = time.monotonic()
        tokens = list(request.tokens_T)
        known, cache = self._session(request.session, tokens, request.start - 1)
        fed = tokens[known:-1]
        with torch.no_grad():
            hidden = self._model.base_model(
                input_ids=torch.tensor([fed]), cache=cache, use_cache=True
            ).last_hidden_state[0, request.start - 1 - known :]
            logits_NV = Head(self._model)(hidden)
            logprobs_NV = log_softmax(logits_NV / request.temperature, -1)
        self._keep(request.session, tokens[:-1], cache)
        chosen = torch.tensor(tokens[request.start :])
        scores = TeacherScores(logprobs_NV.gather(1, chosen[:, None])[:, 0].tolist())
        if request.top_k:
            top = logprobs_NV.topk(request.top_k, -1)
            scores.top_tokens_NK = top.indices.tolist()
            scores.top_logprobs_NK = top.values.tolist()
        args = {"trajectory": request.session, "tokens": len(fed)}
        self._intervals.append(Interval(self._name, "score", began_s, time.monotonic(), args))
        return scores

    def _session(self, name: str, tokens: list[int], most: int) -> tuple[int, DynamicCache]:
        """(how many of `tokens`, at most `most`, have keys and values; these)."""
        seen, cache = self._kept.pop(name, ([], DynamicCache()))
        same = 0
        while same < min(len(seen), most) and seen[same] == tokens[same]:
            same += 1
        if same == 0:
            return 0, DynamicCache()
        if same < len(seen):
            cache.crop(same - len(seen))
        return same, cache

    def _keep(self, name: str, tokens: list[int], cache: DynamicCache) -> None:
        self._kept[name] = (tokens, cache)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def release(self, session: str) -> None:
        self._kept.pop(session, None)

    def drain_intervals(self) -> list[Interval]:
        drained, self._intervals = self._intervals, []
        return drained
