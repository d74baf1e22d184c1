"""Parity: is the streamed update the synchronous update?

    python -m thundersync.parity [objective=grpo|opd] [dtype=float32|float64]
        [policy=tiny|smollm2|FOLDER] [lora=RANK] [cases=all|release|NAME,...]
        [groups=4] [size=6] [tokens=90] [permutations=20] [objective.KEY=VALUE ...]

math.md section 6. For every estimator x aggregation x release x ledger form the same trajectories
at the same weights go through the synchronous and the streaming schedule, in adversarial orders of
arrival, each case's its own, with late rewards and two lost trajectories; under `submit` one of
them is captured by then, and a check that discarded nothing is an error. In float32 the error must
stay within 3 x the control, the largest error of 20 synchronous updates with permuted rows and
chunks, which must itself be above 0; in float64 (weights, gradients, ledger; norms that stay in
float64) within 1e-12. For the paper's objective, float32 also compares the weights after four
updates: within 5 x the same control.

Under `release=turn` every way of turn gradients (docs/turn_gradients.md) is checked: retain, sweep,
whole, and retain within half of the memory that it takes, so that it falls back; one trajectory is
lost in the midst of its turns. Rewritten contexts (`cases=rewritten`) are trajectories of several
sequences.

`cases=release` is every release and form of the paper's objective, which is what a large policy has
time for. A NAME is a part of a case (`batch_std`) or estimator/aggregation/release/form, with
wildcards (`mean/*/submit/auto`). `groups`, `size` and `tokens` are a batch's groups, a group's
trajectories, and the longest of them; fewer permutations make the check stricter, not laxer. The
objective's further terms (`objective.kl.coefficient=0.1`) hold in every case that takes them.

`objective=opd` checks on-policy distillation with made-up scores of a teacher: of the sampled
token, over the teacher's likeliest tokens, with a discount, and beside a task's reward; or the one
that `objective.top_k`, `objective.discount` or `objective.task_weight` says.
"""

from __future__ import annotations

import fnmatch
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from environments.sandbox.ownership import folder_prefix
from harness import entry
from harness.config import LoraConfig, ObjectiveConfig
from harness.policy import lora
from harness.policy.load import resolve
from harness.protocols import UsageError
from thundersync.check import FLOAT64_LIMIT, PERMUTATIONS, Case, Check, Shape, cases
from thundersync.terms import parse as parse_terms
from thundersync.terms import takes, variants

OBJECTIVES = ("grpo", "opd")


@dataclass(frozen=True)
class Options:
    """The command line; `lora` is the adapters' rank, 0 trains every weight."""

    objective: str = "grpo"
    dtype: str = "float32"
    policy: str = "tiny"
    lora: int = 0
    cases: str = "all"
    groups: int = Shape.groups
    size: int = Shape.size
    tokens: int = Shape.tokens
    permutations: int = PERMUTATIONS
    terms: ObjectiveConfig = field(default_factory=ObjectiveConfig)


# The first group is degenerate; a trajectory holds at least a prompt's and an action's token.
_SMALLEST = {"lora": 0, "groups": 2, "size": 3, "tokens": 2, "permutations": 1}


def parse(arguments: Sequence[str]) -> Options:
    """Raises UsageError for an unknown key or a value that cannot be taken."""
    known, given = Options(), {}
    terms = [argument for argument in arguments if argument.startswith("objective.")]
    names = [name for name in Options.__dataclass_fields__ if name != "terms"]
    for argument in (a for a in arguments if a not in terms):
        key, equals, value = argument.partition("=")
        if not equals or key not in names:
            raise UsageError(
                f"{argument}: no such key; there is {', '.join(names)} and objective.KEY"
            )
        if isinstance(getattr(known, key), int):
            if not value.isdecimal() or int(value) < _SMALLEST[key]:
                raise UsageError(f"{key}={value}: take a number of at least {_SMALLEST[key]}")
            given[key] = int(value)
        else:
            given[key] = value
    options = Options(**given)
    if options.objective not in OBJECTIVES:
        raise UsageError(
            f"objective={options.objective}: not available; there is: {', '.join(OBJECTIVES)}"
        )
    options = replace(options, terms=parse_terms(terms, options.objective))
    if options.dtype not in ("float32", "float64"):
        raise UsageError(f"dtype={options.dtype}: take float32 or float64")
    select(options.cases, options.terms, variants(options.terms).values())
    lora.check(LoraConfig(rank=options.lora))
    return options


def select(
    names: str, terms: ObjectiveConfig | None = None, beside: Iterable[ObjectiveConfig] = ()
) -> list[Case]:
    """The cases that a comma-separated list names and that take the objective's further terms, in
    the table's order. Raises UsageError for a name that means none, not even under the objectives
    `beside` it (a distillation with a discount has no turns)."""

    def taken(given: ObjectiveConfig) -> list[Case]:
        return [case for case in cases() if takes(case.estimator, given, case.release)]

    every = taken(terms or ObjectiveConfig())
    known = {case for other in beside for case in taken(other)}.union(every)
    if names == "all":
        return every
    if names == "release":
        return [case for case in every if case.objective == Case().objective]
    chosen: set[Case] = set()
    for name in names.split(","):
        meant = {c for c in known if name in astuple(c) or fnmatch.fnmatchcase(c.name, name)}
        if not meant:
            raise UsageError(
                f"cases={name}: no such case; take all, release, or a name such as batch_std, "
                f"submit or {Case().name}"
            )
        chosen |= meant
    return [case for case in every if case in chosen]


def table(options: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """Check every chosen case; the closing line's value."""
    began_s = time.monotonic()
    shape = Shape(options.groups, options.size, options.tokens)
    rows: list[dict[str, Any]] = []
    check: Check | None = None
    with tempfile.TemporaryDirectory(prefix=folder_prefix("parity")) as folder:
        objectives = variants(options.terms)
        for name, terms in objectives.items():
            check = Check(
                resolve(options.policy), options.dtype, Path(folder), shape, options.permutations,
                lora.adapters(LoraConfig(rank=options.lora), seed=0), terms,
            )  # fmt: skip
            if not rows:
                say(
                    f"{options.policy}, {options.dtype}: {check.parameters:,} trained parameters, "
                    f"{shape.groups} groups x {shape.size} trajectories, {check.tokens} tokens"
                )
            for case in select(options.cases, terms, objectives.values()):
                rows.append(check.row(case) | {"terms": name})
                say(describe(rows[-1]))
    return {
        "policy": options.policy,
        "dtype": options.dtype,
        "lora": options.lora,
        "trained_parameters": check and check.parameters,
        "tokens": check and check.tokens,
        "permutations": options.permutations,
        "seconds": round(time.monotonic() - began_s, 1),
        "rows": rows,
        "ok": all(row["ok"] for row in rows),
    }


def describe(row: dict[str, Any]) -> str:
    """One row; 80 columns where it has no parameter gap."""
    control = row["control_relative_error"]
    bound = f"control {control:.1e}" if control is not None else f"limit {FLOAT64_LIMIT:.0e}"
    gap, term = "", row["estimator"]
    if row["objective"] == "opd":
        term = row["terms"]
    if row["parameter_gap"] is not None:
        gap = f" gap {row['parameter_gap']:.1e} control {row['control_parameter_gap']:.1e}"
    return (
        f"{term:<20}{row['aggregation']:<20}{_played(row):<14}"
        f"{row['gradient_relative_error']:.1e} {bound}{gap} {'ok' if row['ok'] else 'FAILED'}"
    )


def _played(row: dict[str, Any]) -> str:
    """The rung and the ledger's form, or the way of turns; ~ marks rewritten contexts."""
    how = row["way"] or row["form"]
    return f"{row['release']} {how}{'~' if row['context'] == 'rewritten' else ''} "


def check_from_command_line() -> None:
    """Print the table, and the closing line; exits 1 where a case does not hold."""
    result = table(parse(sys.argv[1:]), lambda line: print(line, file=sys.stderr, flush=True))
    rows = result["rows"]
    if sys.stdout.isatty():
        print(f"{sum(row['ok'] for row in rows)} of {len(rows)} cases hold")
    else:
        entry.closing_line(result)
    if not result["ok"]:
        raise SystemExit(1)


def main() -> int:
    return entry.guarded(check_from_command_line, __doc__)


if __name__ == "__main__":
    sys.exit(main())
