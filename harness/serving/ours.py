"""engine=torch, as its worker process runs it: seeds of their own, log-probabilities returned."""

from __future__ import annotations

from harness.engines.torch_engine import TorchEngine
from harness.protocols import Completion, Generation
from harness.serving.play import Progress
from harness.serving.requests import Request
from harness.serving.setting import Setting


class Ours:
    def __init__(self, setting: Setting) -> None:
        self._engine = TorchEngine(
            setting.policy, slots=setting.slots, max_context=setting.context, threads=1
        )
        self._whole: list[tuple[int, int]] = []
        self._asked: list[str] = []

    def add(self, request: Request) -> None:
        def reply(completion: Completion) -> None:
            self._whole.append((request.number, len(completion.tokens_T)))

        name = str(request.number)
        self._asked.append(name)
        self._engine.generate(
            reply,
            Generation(name, request.prompt_T, request.new_tokens, 1.0, request.number, ()),
        )

    def step(self, progress: Progress) -> None:
        self._engine.work()
        made = sum(i.args["generated_tokens"] for i in self._engine.drain_intervals())
        whole, self._whole = self._whole, []
        progress(made, whole)

    def forget(self) -> None:
        for name in self._asked:
            self._engine.release(name)
        self._asked.clear()

    def close(self) -> None: ...
