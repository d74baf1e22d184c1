"""engine=torch beside its peers: the same model, requests and thread, in turn, in one run.

    python -m harness.throughput [policy=tiny] [contenders=torch,generate,continuous]
        [scenarios=together,random] [requests=32] [new_tokens=64] [rounds=5] [slots=64] [seed=0]
        [clock=processor|wall] [vllm_python=INTERPRETER]

Contenders are torch (this harness's engine), generate and continuous (transformers), vllm,
vllm_compiled and vllm_for_training (with seeds and log-probabilities, as torch has); those of vLLM
need `vllm_python`, the interpreter of an environment with it. Each has a process with one thread.

A round is the same `requests` prompts of 40 to 300 tokens for all, and no two rounds have a prompt
in common; who begins changes from round to round, and a first round of each scenario warms up and
does not count. Scenarios: `together` (all at once, `new_tokens` each) and `random` (they come and
go, `new_tokens` on average).

`clock=processor` (the default) counts the seconds of processor that an engine's process took, with
all of its threads: on a core of its own those of the wall, and on a shared one still the engine's.
Waiting costs nothing by it. docs/engine.md has figures.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import entry
from harness.policy import architecture
from harness.policy.load import resolve
from harness.protocols import UsageError
from harness.serving.contenders import TARGETS, Contender, interpreter, needs_vllm
from harness.serving.play import Round
from harness.serving.requests import PROMPT_TOKENS, SCENARIOS, longest
from harness.serving.setting import Setting

OURS = "torch"
CLOCKS = ("processor", "wall")
DEFAULTS = {
    "policy": "tiny", "contenders": "torch,generate,continuous", "scenarios": ",".join(SCENARIOS),
    "requests": "32", "new_tokens": "64", "rounds": "5", "slots": "64", "seed": "0",
    "clock": "processor", "vllm_python": "",
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """The command's, checked."""

    policy: str
    contenders: list[str]
    scenarios: list[str]
    requests: int
    new_tokens: int
    rounds: int
    seed: int
    clock: str
    vllm_python: str
    setting: Setting
    vocabulary: int


def _number(given: Mapping[str, str], key: str, least: int) -> int:
    if not given[key].isdecimal() or int(given[key]) < least:
        raise UsageError(f"{key}={given[key]}: give a whole number of at least {least}")
    return int(given[key])


def _several(given: Mapping[str, str], key: str, known: Sequence[str]) -> list[str]:
    names = given[key].split(",")
    for name in names:
        if name not in known:
            raise UsageError(f"{key}={given[key]}: no {name!r}; there is {', '.join(known)}")
    if len(set(names)) < len(names):
        raise UsageError(f"{key}={given[key]}: one of them is there twice; name each once")
    return names


def parse(arguments: Sequence[str]) -> Options:
    """Raises UsageError, one line."""
    given = DEFAULTS | entry.settings(arguments, tuple(DEFAULTS), (), "")
    if given["clock"] not in CLOCKS:
        raise UsageError(f"clock={given['clock']}: give {' or '.join(CLOCKS)}")
    contenders = _several(given, "contenders", list(TARGETS))
    if not given["vllm_python"] and any(map(needs_vllm, contenders)):
        raise UsageError(
            f"contenders={given['contenders']}: vLLM has an environment of its own; name its "
            "interpreter, vllm_python=VENV/bin/python"
        )
    if given["vllm_python"] and shutil.which(given["vllm_python"]) is None:
        raise UsageError(
            f"vllm_python={given['vllm_python']}: no program there; name the interpreter of an "
            "environment with vLLM, VENV/bin/python"
        )
    new_tokens = _number(given, "new_tokens", 1)
    folder = resolve(given["policy"])
    config = architecture.DecoderConfig.read(folder)
    if longest(new_tokens) > config.context:
        raise UsageError(
            f"new_tokens={new_tokens}: prompts of {PROMPT_TOKENS[1]} and twice as many tokens "
            f"exceed the policy's max_position_embeddings={config.context}; take fewer"
        )
    return Options(
        given["policy"],
        contenders,
        _several(given, "scenarios", SCENARIOS),
        _number(given, "requests", 1),
        new_tokens,
        _number(given, "rounds", 1),
        _number(given, "seed", 0),
        given["clock"],
        given["vllm_python"],
        Setting(str(folder), _number(given, "slots", 1), longest(new_tokens)),
        config.vocab_size,
    )


Rounds = dict[str, dict[str, list[Round]]]  # by scenario and contender


def measure(options: Options) -> Rounds:
    """All rounds. Raises InfrastructureError where an engine ends."""
    found: Rounds = {s: {name: [] for name in options.contenders} for s in options.scenarios}
    with contextlib.ExitStack() as stack:
        started = []
        for name in options.contenders:
            python = interpreter(name, options.vllm_python)
            started.append(stack.enter_context(Contender(name, options.setting, python)))
            _say(f"{name}: ready")
        for number in range(-1, options.rounds):
            for scenario in options.scenarios:
                turn = number % len(started)
                for contender in [*started[turn:], *started[:turn]]:
                    round_ = contender.round({
                        "scenario": scenario, "count": options.requests,
                        "new_tokens": options.new_tokens, "vocabulary": options.vocabulary,
                        "seed": options.seed + number,
                    })  # fmt: skip
                    if number >= 0:
                        found[scenario][contender.name].append(round_)
                    which = f"round {number + 1}" if number >= 0 else "warm-up"
                    _say(f"{which}, {scenario}, {contender.name}: {_tokens_per_s(round_)}")
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _tokens_per_s(round_: Round) -> str:
    per_s = [round_.tokens / s for s in (round_.processor_s, round_.wall_s)]
    return f"{per_s[0]:.0f} tokens per second of processor, {per_s[1]:.0f} of the wall"


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "mean": math.exp(statistics.fmean(map(math.log, values))),
        "least": min(values),
        "most": max(values),
    }


def report(options: Options, rounds: Rounds) -> dict[str, Any]:
    """Tokens per second and latencies by the chosen clock; `ratio` is ours over this one's, round
    by round (geometric mean)."""

    def seconds(round_: Round) -> float:
        return getattr(round_, f"{options.clock}_s")

    scenarios: dict[str, Any] = {}
    for scenario, by_name in rounds.items():
        rows: dict[str, dict[str, Any]] = {}
        for name, played in by_name.items():
            latencies = [
                s for r in played for s in getattr(r, f"{options.clock}_latencies_s")
            ]  # fmt: skip
            cuts = statistics.quantiles(latencies, n=20, method="inclusive")
            rows[name] = {
                "tokens_per_s": _spread([r.tokens / seconds(r) for r in played]),
                "latency_p50_s": cuts[9],
                "latency_p95_s": cuts[18],
            }
            if OURS in by_name and name != OURS:
                pairs = zip(by_name[OURS], played, strict=True)
                rows[name]["ratio"] = _spread([seconds(p) / seconds(o) for o, p in pairs])
        peers = {n: r["ratio"]["mean"] for n, r in rows.items() if "ratio" in r}
        scenarios[scenario] = {
            "engines": rows,
            "fastest_peer": min(peers, key=peers.__getitem__) if peers else None,
        }
    return {
        "policy": options.policy, "requests": options.requests, "new_tokens": options.new_tokens,
        "rounds": options.rounds, "clock": options.clock,
        "scenarios": scenarios,
    }  # fmt: skip


def table(found: Mapping[str, Any]) -> list[str]:
    """The report in 100 columns, for people."""
    lines = []
    for scenario, said in found["scenarios"].items():
        lines.append(
            f"{scenario:<20}{'tokens/s (range)':<23}{'latency p50, p95':<20}torch is faster by"
        )
        for name, row in said["engines"].items():
            speed = "{mean:.0f} ({least:.0f}-{most:.0f})".format(**row["tokens_per_s"])
            latency = f"{row['latency_p50_s']:.2f}, {row['latency_p95_s']:.2f} s"
            times = (
                "{mean:.2f} ({least:.2f}-{most:.2f})".format(**row["ratio"])
                if "ratio" in row
                else ""
            )
            mark = "  fastest peer" if name == said["fastest_peer"] else ""
            lines.append(f"  {name:<18}{speed:<23}{latency:<20}{times}{mark}")
    return lines


def main() -> int:
    def body() -> None:
        options = parse(sys.argv[1:])
        found = report(options, measure(options))
        for line in table(found):
            _say(line)
        entry.closing_line(found)

    return entry.guarded(body, __doc__)


if __name__ == "__main__":
    sys.exit(main())
