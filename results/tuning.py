"""Which learning rate a grid chooses for each schedule, as a Markdown table:

    python -m results.tuning multirun/DATE/TIME

One rule for every schedule: of the trials within one standard error of its best, the one nearest
to the common setting (in ratio). A difference that is noise chooses nothing: schedules that make
the same update are not to differ by luck.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from results.load import load, name

COMMON = 3e-4


@dataclass(frozen=True)
class Trial:
    """One run of the grid: its solve rate on the tuning split, with the standard error."""

    schedule: str
    learning_rate: float
    solve_rate: float
    standard_error: float
    updates: int
    seed: int


def trials(folder: Path) -> list[Trial]:
    """Of the finished runs below a sweep's folder. Raises ValueError where there is none, or where
    schedules had different trials: the comparison would not be an equal one."""
    loaded = load(folder)
    if not loaded.runs:
        raise ValueError(f"{folder}: no finished run below it")
    if loaded.left_out:
        whole = "; ".join(map(str, loaded.left_out))
        raise ValueError(f"{folder}: not every trial is whole: {whole}")
    found = [
        Trial(
            name(run),
            float(run.settings["schedule.learning_rate"]),
            run.summary["accuracy"]["final"],
            run.summary["accuracy"]["final_standard_error"],
            run.summary["updates"],
            run.seed,
        )
        for run in loaded.runs
    ]
    grids = defaultdict(set)
    for trial in found:
        grids[trial.schedule].add((trial.learning_rate, trial.seed))
    if len(set(map(frozenset, grids.values()))) > 1:
        raise ValueError(f"{folder}: the schedules did not have the same trials: {dict(grids)}")
    return found


def choose(of_one: Sequence[Trial]) -> Trial:
    """The trial that the rule takes."""
    best = max(of_one, key=lambda t: t.solve_rate)
    alike = [t for t in of_one if t.solve_rate >= best.solve_rate - best.standard_error]
    return min(alike, key=lambda t: (abs(math.log(t.learning_rate / COMMON)), -t.solve_rate))


def table(found: Sequence[Trial]) -> str:
    by_schedule: dict[str, list[Trial]] = defaultdict(list)
    for trial in found:
        by_schedule[trial.schedule].append(trial)
    lines = ["| schedule | learning rate | updates | tuning split | |", "|---|---|---|---|---|"]
    for schedule, of_one in by_schedule.items():
        chosen = choose(of_one)
        for t in sorted(of_one, key=lambda t: t.learning_rate):
            rate = f"{t.solve_rate:.1%} ± {t.standard_error:.1%}"
            mark = "chosen" if t is chosen else ""
            lines.append(f"| {schedule} | {t.learning_rate:g} | {t.updates} | {rate} | {mark} |")
    return "\n".join(lines)


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m results.tuning FOLDER", file=sys.stderr)
        return 2
    try:
        print(table(trials(Path(sys.argv[1]))))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
