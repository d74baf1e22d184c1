"""Time to equal performance: when two schedules have made the same updates, and what they solve:

    python -m results.equal_performance FOLDER [of=stream] [against=sync] [out=NAME.md]

One row for each point at which both were evaluated after equally many updates (the marks of a
budget of updates, and its end): training seconds of each, their ratio over pairs of one seed, and
how far the solve rates lie apart. A schedule that makes the same update reaches the same weights,
so that this ratio is the paper's "time to equal performance", without the noise of crossing a
target; that the rates are equal is shown, not assumed. Rows of simulated runs say VIRTUAL.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results import arguments, stats
from results.load import by_label, check_comparable, load, meant
from results.runs import Run
from results.stats import Estimate
from results.tables import figure

USAGE = "results.equal_performance FOLDER [of=stream] [against=sync] [out=NAME.md]"
POINTS = 100.0


@dataclass(frozen=True)
class Evaluated:
    """Weights after `updates` optimizer steps: training seconds they took, and their solve rate."""

    updates: int
    seconds: float
    solve_rate: float


@dataclass(frozen=True)
class Pair:
    """Both schedules after `updates` updates: means over the seeds that both have."""

    updates: int
    seconds: tuple[float, float]  # against, of
    rates: tuple[float, float]
    ratio: Estimate  # against's seconds in terms of `of`'s
    difference: Estimate  # of's solve rate less against's, in points


def evaluated(run: Run) -> list[Evaluated]:
    """After training's updates alone; initial weights took no time. Raises ValueError where a point
    cannot be placed."""
    marks = {mark["phase"]: mark["updates"] for mark in run.get("accuracy", "curve") or []}
    found = []
    for point in run.curve:
        updates = run.get("updates") if point.phase == "final" else marks.get(point.phase, 0)
        if not updates:
            continue
        seconds = run.seconds_of(updates)
        if seconds is None or point.solve_rate is None:
            raise ValueError(f"{run.name}: updates.csv lacks the times of its {updates} updates")
        found.append(Evaluated(updates, seconds, point.solve_rate))
    return found


def pairs(runs: Sequence[Run], of: str, against: str) -> list[Pair]:
    """Raises ValueError for runs that are no comparison, budgets that count anything but updates,
    and where no two runs were evaluated after equally many."""
    check_comparable(runs, ())
    for run in runs:
        if run.budget[0] != "updates":
            raise ValueError(f"{run.name}: budget.kind={run.budget[0]}; take updates, so that both "
                             "schedules are evaluated after equally many")  # fmt: skip
    there = by_label(runs)
    first = there[meant("against", against, there)]
    second = there[meant("of", of, there)]
    seeds = sorted(first.keys() & second.keys())
    shared = [_shared(evaluated(first[s]), evaluated(second[s])) for s in seeds]
    counts = sorted(set.intersection(*(set(points) for points in shared))) if shared else []
    if not counts:
        raise ValueError(f"of={of} against={against}: no seed has both, evaluated after equally "
                         "many updates")  # fmt: skip
    return [_pair(n, dict(zip(seeds, (p[n] for p in shared), strict=True))) for n in counts]


def _shared(
    first: Sequence[Evaluated], second: Sequence[Evaluated]
) -> dict[int, tuple[Evaluated, Evaluated]]:
    theirs = {point.updates: point for point in second}
    return {p.updates: (p, theirs[p.updates]) for p in first if p.updates in theirs}


def _pair(updates: int, by_seed: Mapping[int, tuple[Evaluated, Evaluated]]) -> Pair:
    def mean(which: int, key: str) -> float:
        return sum(getattr(p[which], key) for p in by_seed.values()) / len(by_seed)

    def each(which: int, key: str, scale: float = 1.0) -> dict[int, float]:
        return {s: scale * getattr(p[which], key) for s, p in by_seed.items()}

    return Pair(
        updates,
        (mean(0, "seconds"), mean(1, "seconds")),
        (mean(0, "solve_rate"), mean(1, "solve_rate")),
        stats.paired_ratio(each(0, "seconds"), each(1, "seconds")),
        stats.paired_differences(each(0, "solve_rate", POINTS), each(1, "solve_rate", POINTS)),
    )


def markdown(found: Sequence[Pair], of: str, against: str, run: Run) -> str:
    label = "VIRTUAL: " if run.virtual else ""
    what = "times are simulated, learning is real" if run.virtual else "measured"
    lines = [
        f"{label}{run.ran_on}; {what}.",
        "",
        f"| updates | seeds | {against}, s | {of}, s | {against} takes … times as long | "
        f"solve rate, {against} | solve rate, {of} | {of} - {against}, points |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for p in found:
        lines.append(
            f"| {label}{p.updates} | {p.ratio.runs} | {p.seconds[0]:.4g} | {p.seconds[1]:.4g} | "
            f"{figure(p.ratio).text} | {p.rates[0]:.1%} | {p.rates[1]:.1%} | "
            f"{figure(p.difference, '{:+.1f}').text} |"
        )
    lines += ["", "Pairs of one seed; in brackets Student's 95 % interval, where there are two "
              "seeds."]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> int:
    parsed = arguments.parse(sys.argv[1:], ("of", "against", "out"), USAGE)
    if parsed is None:
        return 2
    (folder,), options = parsed
    of, against = options.get("of", "stream"), options.get("against", "sync")
    try:
        loaded = load(folder)
        if not loaded.runs:
            raise ValueError("no finished run to compare")
        table = markdown(pairs(loaded.runs, of, against), of, against, loaded.runs[0])
    except ValueError as error:
        print(f"error: {folder}: {error}", file=sys.stderr)
        return 2
    arguments.give(table, loaded.left_out, options.get("out"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
