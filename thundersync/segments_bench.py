"""What turn gradients cost: every way, as the number of turns grows.

    python -m thundersync.segments_bench [policy=tiny|smollm2|FOLDER] [turns=4,8,16,32,64]
        [prompt=128] [observation=24] [action=12] [tokens=0] [chunk=512] [rounds=3] [threads=1]
        [ways=whole,recompute,retain,sweep]

math.md section 5. Turns alike, after a prompt; `tokens` above 0 is a trajectory's length whatever
its number of turns, which then share it. `learner_s` is all of the learner's work, `tail_s` what is
left of it once the last token is there; medians of `rounds`, in which the ways take turns. With one
thread both are processor time, so that other work on the machine counts little.
`peak_bytes` is the most that the allocator handed out beyond the weights and the gradient's
buffers, in a pass of its own. `recompute` runs the whole prefix again for every turn: a baseline
that nobody would choose. Progress goes to standard error, the closing line is JSON.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness import entry
from harness.learner.client import ScoredTokens
from harness.policy.load import load_for_training, resolve
from harness.protocols import UsageError

WAYS = ("whole", "recompute", "retain", "sweep")
Turn = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Options:
    """The command line."""

    policy: str = "tiny"
    turns: str = "4,8,16,32,64"
    ways: str = ",".join(WAYS)
    prompt: int = 128
    observation: int = 24
    action: int = 12
    tokens: int = 0
    chunk: int = 512
    rounds: int = 3
    threads: int = 1


@dataclass(frozen=True)
class Row:
    """One way at one number of turns."""

    way: str
    turns: int
    tokens: int
    learner_s: float
    tail_s: float
    peak_bytes: int


@dataclass(frozen=True)
class Allocations:
    """What some work took from the allocator: at its end, and at the most."""

    kept_bytes: int
    peak_bytes: int


def allocations(work: Callable[[], object]) -> Allocations:
    """Of a CPU's memory, by torch's own records."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    assert profiled.profiler is not None
    results = profiled.profiler.kineto_results
    assert results is not None
    kept = peak = 0
    moves: list[Any] = [event for event in results.events() if event.name() == "[memory]"]
    for event in sorted(moves, key=lambda event: event.start_ns()):
        kept += event.nbytes()
        peak = max(peak, kept)
    return Allocations(kept, peak)


def parse(arguments: Sequence[str]) -> Options:
    """Raises UsageError for an unknown key or a value that cannot be taken."""
    known, given = Options(), {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in Options.__dataclass_fields__:
            names = ", ".join(Options.__dataclass_fields__)
            raise UsageError(f"{argument}: no such key; there is {names}")
        if isinstance(getattr(known, key), int):
            least = 0 if key in ("tokens", "observation") else 1
            if not value.isdecimal() or int(value) < least:
                raise UsageError(f"{key}={value}: take a number of at least {least}")
            given[key] = int(value)
        else:
            given[key] = value
    options = Options(**given)
    for way in options.ways.split(","):
        if way not in WAYS:
            raise UsageError(f"ways={way}: there is {', '.join(WAYS)}")
    for number in options.turns.split(","):
        if not number.isdecimal() or int(number) < 1:
            raise UsageError(f"turns={number}: take numbers of at least 1, such as 4,8,16")
    return options


def made_turns(options: Options, count: int, vocabulary: int) -> list[Turn]:
    """Random tokens; the prompt belongs to the first turn."""
    draw = random.Random(count)
    share = options.observation + options.action
    made: list[Turn] = []
    for n in range(count):
        if options.tokens:
            share = options.tokens * (n + 1) // count - options.tokens * n // count
        acted = min(options.action, share)
        seen = share - acted + (0 if n or options.tokens else options.prompt)
        tokens = [draw.randrange(vocabulary) for _ in range(seen + acted)]
        made.append((tokens, [0] * seen + [1] * acted))
    return made


class _Ways:
    """Each way as two steps: what can be done before the last token is there, and the rest."""

    def __init__(self, model: Any, options: Options, turns: list[Turn]) -> None:
        import torch

        from harness.config import ObjectiveConfig
        from harness.learner.scoring import Scorer
        from thundersync.segments import TurnGradients

        self._turns = turns
        self._scorer = Scorer(model, 1.0, ObjectiveConfig())
        self._made = {
            way: TurnGradients(model, way=way, chunk_tokens=options.chunk)
            for way in ("retain", "sweep")
        }
        self._parameters = self._made["sweep"].parameters
        self._into = [torch.zeros_like(p) for p in self._parameters]

    def early(self, way: str) -> None:
        """All but the last turn."""
        if way == "recompute":
            for n in range(len(self._turns) - 1):
                self._one_pass(n, alone=True)
        elif way != "whole":
            self._made[way].begin("a")
            for turn in self._turns[:-1]:
                self._made[way].extend("a", *turn)

    def late(self, way: str) -> None:
        """The last turn, and whatever waited for it."""
        if way in ("whole", "recompute"):
            self._one_pass(len(self._turns) - 1, alone=way == "recompute")
            return
        self._made[way].extend("a", *self._turns[-1])
        count = sum(sum(mask) for _, mask in self._turns)
        self._made[way].finish("a", [[1.0] * count], [self._into])

    def _one_pass(self, last: int, alone: bool) -> None:
        """Forward and backward pass of turns up to `last`, as the learner does it for a whole
        trajectory; for the loss of the last one `alone`."""
        tokens = [t for tokens, _ in self._turns[: last + 1] for t in tokens]
        scored = [mask for _, mask in self._turns[: last + 1]]
        earlier = [m * (not alone) for mask in scored[:-1] for m in mask]
        row = ScoredTokens("a", 0, None, tokens, earlier + scored[-1])
        score = self._scorer([row], [1.0])
        assert score is not None
        for parameter, buffer in zip(self._parameters, self._into, strict=True):
            parameter.grad = buffer
        score.policy.backward()
        for parameter in self._parameters:
            parameter.grad = None


def measure(options: Options, model: Any, count: int) -> list[Row]:
    """All ways at one number of turns."""
    turns = made_turns(options, count, model.config.vocab_size)
    ways, names = _Ways(model, options, turns), options.ways.split(",")
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    peaks: dict[str, int] = {}
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    for name in names:
        peaks[name] = allocations(lambda n=name: (ways.early(n), ways.late(n))).peak_bytes
    for _ in range(options.rounds):
        for name in names:
            began_s = clock()
            ways.early(name)
            between_s = clock()
            ways.late(name)
            ended_s = clock()
            seconds[name].append((ended_s - began_s, ended_s - between_s))
    tokens = sum(len(mask) for _, mask in turns)
    return [
        Row(
            name, count, tokens,
            statistics.median(s for s, _ in seconds[name]),
            statistics.median(s for _, s in seconds[name]),
            peaks[name],
        )
        for name in names
    ]  # fmt: skip


def table(options: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything; the closing line's value."""
    import torch

    from harness.learner.scoring import silence_dropout

    torch.set_num_threads(options.threads)
    model = load_for_training(resolve(options.policy), torch.float32)
    silence_dropout(model)
    model.train()
    rows: list[Row] = []
    say(f"{'way':<10}{'turns':>6}{'tokens':>8}{'learner_s':>11}{'tail_s':>9}{'peak MB':>9}")
    for count in options.turns.split(","):
        for row in measure(options, model, int(count)):
            rows.append(row)
            say(
                f"{row.way:<10}{row.turns:>6}{row.tokens:>8}{row.learner_s:>11.4f}"
                f"{row.tail_s:>9.4f}{row.peak_bytes / 1e6:>9.1f}"
            )
    return {"policy": options.policy, "rows": [asdict(row) for row in rows]}


def measure_from_command_line() -> None:
    """Print the table, and the closing line."""
    result = table(parse(sys.argv[1:]), lambda line: print(line, file=sys.stderr, flush=True))
    if not sys.stdout.isatty():
        entry.closing_line(result)


def main() -> int:
    return entry.guarded(measure_from_command_line, __doc__)


if __name__ == "__main__":
    sys.exit(main())
