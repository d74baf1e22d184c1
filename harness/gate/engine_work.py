"""Generation by the torch engine, and a fixed computation of the same kind beside it.

The engine's speed on a machine says little about the engine. `PlainDecoder` makes the tensor
operations that a decoder of the default policy's shape cannot do without, at the same sizes, and
nothing else: no slots, no sessions, no prompts. None of its code is the engine's, so that a change
of the engine is a change of the ratio.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F

from harness.engines.torch_engine import TorchEngine
from harness.policy.load import resolve
from harness.protocols import Completion, Generation

WIDTH, HEADS, DEPTH, INNER, VOCABULARY = 128, 4, 4, 384, 1024
CONTEXT = 200  # about what the requests have in the middle of their generation


class EngineWork:
    """`requests` of `new_tokens` each, prompts of 40 to 300 tokens, on one thread."""

    def __init__(self, requests: int, new_tokens: int) -> None:
        draw = random.Random(0)
        self._prompts = [
            [draw.randrange(3, 1024) for _ in range(draw.randint(40, 300))] for _ in range(requests)
        ]
        self._new_tokens = new_tokens
        self._engine = TorchEngine(str(resolve("tiny")), slots=64, max_context=640, threads=1)
        self.done: list[Completion] = []

    def begin(self) -> None:
        """Ask for all of it; sessions of an earlier time are forgotten."""
        self.done = []
        for number, prompt in enumerate(self._prompts):
            self._engine.release(str(number))
            self._engine.generate(
                self.done.append,
                Generation(str(number), prompt, self._new_tokens, 1.0, number, ()),
            )

    def steps(self, most: int) -> None:
        """So many of the engine's steps, or what is left."""
        for _ in range(most):
            if not self._engine.has_work():
                return
            self._engine.work()

    def generate(self) -> list[Completion]:
        """From the first prompt to the last token."""
        self.begin()
        while self._engine.has_work():
            self._engine.work()
        return self.done

    def slices(self, steps: int) -> list[Callable[[], None]]:
        """A whole generation, in pieces of so many steps. It is begun in the first of them."""
        self.generate()
        self.begin()
        count = 0
        while self._engine.has_work():
            self._engine.work()
            count += 1
        rest: list[Callable[[], None]] = [lambda: self.steps(steps)] * (-(-count // steps) - 1)

        def first() -> None:
            self.begin()
            self.steps(steps)

        return [first, *rest]


class PlainDecoder:
    """Steps of `rows` sequences through a decoder of fixed random weights, keys and values."""

    def __init__(self, rows: int) -> None:
        draw = torch.Generator().manual_seed(0)

        def random_(*shape: int) -> torch.Tensor:
            return 0.05 * torch.randn(shape, generator=draw)

        self._rows = rows
        self._x = random_(rows, WIDTH)
        self._layers = [
            (
                random_(3 * WIDTH, WIDTH), random_(WIDTH, WIDTH),
                random_(2 * INNER, WIDTH), random_(INNER, WIDTH),
                random_(rows * HEADS, WIDTH // HEADS, CONTEXT),
                random_(rows * HEADS, CONTEXT, WIDTH // HEADS),
            )
            for _ in range(DEPTH)
        ]  # fmt: skip
        self._head = random_(VOCABULARY, WIDTH)
        self._targets = torch.rand((rows, 1), generator=draw, dtype=torch.float64)

    @torch.inference_mode()
    def steps(self, count: int) -> None:
        """Each ends with a sampled token per row, as the engine's do."""
        for _ in range(count):
            x = self._x
            for qkv, out, gate_up, down, keys, values in self._layers:
                h = F.rms_norm(x, (WIDTH,))
                q = F.linear(h, qkv)[:, :WIDTH].reshape(self._rows * HEADS, 1, WIDTH // HEADS)
                mixed = torch.bmm(torch.softmax(torch.bmm(q, keys), -1), values)
                x = torch.addmm(x, mixed.view(self._rows, WIDTH), out)
                gate, up = F.linear(F.rms_norm(x, (WIDTH,)), gate_up).chunk(2, dim=1)
                x = torch.addmm(x, F.silu(gate) * up, down)
            probabilities = torch.log_softmax(F.linear(x, self._head), -1).exp()
            cumulated = probabilities.cumsum(-1, dtype=torch.float64)
            torch.searchsorted(cumulated, self._targets * cumulated[:, -1:]).tolist()
