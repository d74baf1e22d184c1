"""What turns cost on this machine: passes of one sequence, whole and turn by turn.

`release=auto` and `segments.way=auto` choose by it: where a turn's own backward pass costs more
than running its forward pass again inside a larger one, keeping its graph does not pay (math.md
section 5: short turns, small models).
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from harness.protocols import TurnCosts
from harness.timings import PassCost, fit
from thundersync.segments_memory import Saved
from thundersync.segments_pass import backward, run
from thundersync.segments_past import Shape, Store

LENGTHS = (32, 256)  # tokens of a turn
BEFORE = 128  # tokens in front of it
ROUNDS = 3
NEVER = 1 << 30  # a turn that long does not occur


def measure(model: Any, temperature: float) -> TurnCosts:
    """Wall seconds of this thread's passes, medians of a few; leaves no gradient."""
    own = [p.grad for p in model.parameters()]
    found: dict[str, list[tuple[int, float]]] = {}
    kept_bytes: list[float] = []
    for turn in range(ROUNDS + 1):  # the first warms up
        for tokens in LENGTHS:
            for name, seconds in _round(model, temperature, tokens, kept_bytes).items():
                if turn:
                    found.setdefault(f"{name} {tokens}", []).append((tokens, seconds))
    for parameter, gradient in zip(model.parameters(), own, strict=True):
        parameter.grad = gradient

    def cost(name: str) -> PassCost:
        cells = [found[f"{name} {tokens}"] for tokens in LENGTHS]
        medians = [(c[0][0], statistics.median(s for _, s in c)) for c in cells]
        return fit(medians) or PassCost(0.0, 0.0)

    whole, again, back = cost("whole"), cost("rerun"), cost("backward")
    return TurnCosts(
        whole=whole,
        kept_forward=cost("kept_forward"),
        bare_forward=cost("bare_forward"),
        backward=back,
        rerun=again,
        retain_from=_retain_from(whole, back),
        live_bytes=statistics.fmean(kept_bytes),
    )


def _retain_from(whole: PassCost, back: PassCost) -> int:
    """From how many tokens on a backward pass of a turn's own leaves less for the end than running
    the turn again inside a large pass, whose fixed costs many turns share."""
    saved_s = whole.token_s - back.token_s
    if back.pass_s <= 0.0:
        return 0
    return math.ceil(back.pass_s / saved_s) if saved_s * NEVER > back.pass_s else NEVER


def _round(
    model: Any, temperature: float, tokens: int, kept_bytes: list[float]
) -> dict[str, float]:
    """Seconds of each kind of pass of `tokens` tokens."""
    draw = random.Random(tokens)
    ids = [draw.randrange(model.config.vocab_size) for _ in range(BEFORE + tokens + 1)]
    acts = [0] * (BEFORE + 1) + [int(n % 3 == 0) for n in range(tokens)]
    shape = Shape(model)
    store, span = Store(shape), (BEFORE, BEFORE + tokens)
    run(model, temperature, store, ids, acts, 0, BEFORE, graph=False, writes=True)

    def timed(work: Callable[[], Any]) -> tuple[float, Any]:
        began_s = time.perf_counter()
        result = work()
        return time.perf_counter() - began_s, result

    def passed(graph: bool, writes: bool) -> Any:
        return run(model, temperature, store, ids, acts, *span, graph=graph, writes=writes)

    def back(scored: Any) -> None:
        store.adjoint = shape.zeros(BEFORE + tokens)
        backward(scored, scored.logprobs_NV[:, 0].sum(), later=True, keep=False)

    bare_s, _ = timed(lambda: passed(False, True))
    saved = Saved([*model.parameters(), store.values])
    with saved:
        kept_s, scored = timed(lambda: passed(True, True))
    kept_bytes.append(saved.live_bytes() / tokens)
    backward_s, _ = timed(lambda: back(scored))
    rerun_s, _ = timed(lambda: back(passed(True, False)))
    alone = Store(shape)

    def whole() -> None:
        scored = run(model, temperature, alone, ids[BEFORE:], acts[BEFORE:], 0, tokens, True, True)
        backward(scored, scored.logprobs_NV[:, 0].sum(), later=False, keep=False)

    whole_s, _ = timed(whole)
    return {
        "bare_forward": bare_s,
        "kept_forward": kept_s,
        "backward": backward_s,
        "rerun": rerun_s,
        "whole": whole_s,
    }
