"""What schedules learn in the same virtual time, from a sweep that learns for real:

    python -m results.virtual_accuracy FOLDER [of=stream] [within=2] [out=NAME.md]

One row for each other schedule: final solve rates, and how many points that of `of` lies above it,
by pairs of one seed, with Student's 95 % interval. An interval wider than `within` points to either
side resolves nothing here, whatever it shows: the row says how many seeds would. VIRTUAL: times are
simulated; tokens, commands, verdicts and gradients are real.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from results import arguments, stats
from results.load import by_label, check_comparable, load, meant
from results.runs import Run
from results.stats import Estimate

USAGE = "results.virtual_accuracy FOLDER [of=stream] [within=2] [out=NAME.md]"
POINTS = 100.0
MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Difference:
    """`difference` is the leading schedule's final solve rate less `other`'s, in points; `needed`
    seeds would bring the interval within the bound (None: no spread is known, or none would)."""

    other: str
    rates: tuple[float, float]  # the leading schedule's, the other's; of the seeds that both have
    updates: tuple[float, float]
    difference: Estimate
    within: float
    needed: int | None

    @property
    def half_width(self) -> float | None:
        interval = self.difference.interval
        return None if interval is None else (interval[1] - interval[0]) / 2

    @property
    def verdict(self) -> str:
        half = self.half_width
        if half is None:
            return "not resolved; one seed has no interval"
        if half > self.within:
            needed = f"about {self.needed}" if self.needed else f"more than {MOST_SEEDS}"
            return f"not resolved; {needed} seeds would be needed"
        return "resolved" if stats.verdict(self.difference) == "resolved" else (
            f"no difference beyond ± {half:.1f} points"
        )  # fmt: skip


def seeds_within(differences: Sequence[float], within: float) -> int | None:
    """How many seeds give an interval of `within` to either side, if the spread stays what it is:
    the smallest n with t(n-1) s / sqrt(n) <= within."""
    if len(differences) < 2:
        return None
    deviation = statistics.stdev(differences)
    for n in range(2, MOST_SEEDS + 1):
        if stats.t_quantile(n - 1) * deviation / math.sqrt(n) <= within:
            return n
    return None


def compare(runs: Sequence[Run], of: str, within: float) -> list[Difference]:
    """Raises ValueError for real runs, runs that are no comparison, and where nothing is paired."""
    real = [run.name for run in runs if not run.virtual]
    if real:
        raise ValueError(f"{real[0]}: not in virtual time; results.sweep compares real runs")
    check_comparable(runs, ())
    for run in runs:
        if run.get("accuracy", "final") is None:
            raise ValueError(f"{run.name}: nothing was evaluated; take evaluation.final=true")
    there = by_label(runs)
    first = there.pop(meant("of", of, there))
    found = []
    for other, theirs in sorted(there.items()):
        seeds = sorted(first.keys() & theirs.keys())
        if not seeds:
            continue
        mine, its = [first[s] for s in seeds], [theirs[s] for s in seeds]
        points = [POINTS * (_final(a) - _final(b)) for a, b in zip(mine, its, strict=True)]
        found.append(
            Difference(
                other,
                (statistics.fmean(map(_final, mine)), statistics.fmean(map(_final, its))),
                (statistics.fmean(map(_updates, mine)), statistics.fmean(map(_updates, its))),
                stats.t_interval(points),
                within,
                seeds_within(points, within),
            )
        )
    if not found:
        raise ValueError(f"of={of}: no other schedule has a run of the same seed")
    return found


def _final(run: Run) -> float:
    return float(run.get("accuracy", "final"))


def _updates(run: Run) -> float:
    return float(run.get("updates"))


def markdown(found: Sequence[Difference], of: str, ran_on: str, budget: str) -> str:
    """A line for each comparison, below what all figures are."""
    lines = [
        f"VIRTUAL: {ran_on}; budget {budget}; times are simulated, learning is real.",
        "",
        f"| {of} against | seeds | updates, {of} | updates, other | solve rate, {of} | "
        f"solve rate, other | {of} - other, points (95 %) | half-width, points | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for d in found:
        interval, half = d.difference.interval, d.half_width
        shown = "" if interval is None else f" ({interval[0]:+.1f} to {interval[1]:+.1f})"
        lines.append(
            f"| VIRTUAL: {d.other} | {d.difference.runs} | {d.updates[0]:.1f} | "
            f"{d.updates[1]:.1f} | {d.rates[0]:.1%} | {d.rates[1]:.1%} | "
            f"{d.difference.value:+.1f}{shown} | {'-' if half is None else f'{half:.1f}'} | "
            f"{d.verdict} |"
        )
    lines += [
        "",
        f"Resolved: the interval is within {found[0].within:g} points to either side and leaves "
        "out 0. Pairs of one seed, Student's t.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parsed = arguments.parse(sys.argv[1:], ("of", "within", "out"), USAGE)
    if parsed is None:
        return 2
    (folder,), options = parsed
    of = options.get("of", "stream")
    try:
        within = float(options.get("within", "2"))
        loaded = load(folder)
        if not loaded.runs:
            raise ValueError("no finished run to compare")
        found = compare(loaded.runs, of, within)
    except ValueError as error:
        print(f"error: {folder}: {error}", file=sys.stderr)
        return 2
    kind, limit = loaded.runs[0].budget
    table = markdown(found, of, loaded.runs[0].ran_on, f"{limit:g} {kind}")
    arguments.give(table, loaded.left_out, options.get("out"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
