"""Where streaming pays, from a sweep in virtual time of one condition under both schedules:

    python -m results.virtual_sweeps FOLDER vary=KEY [out=NAME.md]

One row for each value of KEY: update times of the synchronous and the streaming schedule side by
side, and how much faster streaming is. The table, as Markdown, goes to standard output, and to
`out` where that is given. VIRTUAL: every figure is simulated.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from results import arguments
from results.load import load
from results.runs import Run

USAGE = "results.virtual_sweeps FOLDER vary=KEY [out=NAME.md]"
BASELINE = "sync"
PAYS = 1.01  # below it the schedules are equal, for who plans a run


@dataclass(frozen=True)
class Point:
    """One value of what is varied, under one streaming rung; means over seeds."""

    value: float | str
    release: str
    baseline_s: float
    stream_s: float
    baseline_idle: float
    stream_idle: float
    tail_s: tuple[float, float]
    seeds: int
    ran_on: str

    @property
    def speedup(self) -> float:
        return self.baseline_s / self.stream_s


def points(runs: Sequence[Run], key: str) -> list[Point]:
    """Of every value that both schedules have runs of. Raises ValueError for real runs, a key that
    no run was configured with, and where there is nothing to compare."""
    real = [run.name for run in runs if not run.virtual]
    if real:
        raise ValueError(f"{real[0]}: not in virtual time; results.report has tables of real runs")
    missing = [run.name for run in runs if key not in run.settings]
    if missing:
        raise ValueError(f"vary={key}: {missing[0]} was not configured with it")
    cells: dict[tuple[float | str, str], list[Run]] = {}
    for run in runs:
        rung = run.summary["release"] or run.summary["schedule"]
        cells.setdefault((run.settings[key], rung), []).append(run)
    found = []
    for value, rung in cells:
        base, stream = cells.get((value, "batch")), cells[value, rung]
        if base is None or stream[0].summary["schedule"] == BASELINE:
            continue
        found.append(
            Point(
                value, rung, _mean(base, "time", "per_update_s"),
                _mean(stream, "time", "per_update_s"), _mean(base, "idle", "learner"),
                _mean(stream, "idle", "learner"),
                (_mean(base, "time", "tail_s"), _mean(stream, "time", "tail_s")),
                len(stream), stream[0].ran_on,
            )
        )  # fmt: skip
    if not found:
        raise ValueError(f"vary={key}: no value has a run of {BASELINE} and one of stream")
    return sorted(found, key=lambda point: (point.release, _order(point.value)))


def _order(value: float | str) -> tuple[float, str]:
    return (value, "") if isinstance(value, int | float) else (0.0, str(value))


def _mean(runs: Sequence[Run], *keys: str) -> float:
    return fmean(run.get(*keys) for run in runs)


def markdown(found: Sequence[Point], key: str) -> str:
    """A line a point, then where streaming pays in words."""
    lines = [
        f"| {key} | stream releases by | sync update, s | stream update, s | sync / stream | "
        "sync tail, s | stream tail, s | sync learner idle | stream learner idle | seeds | "
        "ran on |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {p.value} | {p.release} | {p.baseline_s:.0f} | {p.stream_s:.0f} | {p.speedup:.2f} x | "
        f"{p.tail_s[0]:.0f} | {p.tail_s[1]:.0f} | {100 * p.baseline_idle:.0f} % | "
        f"{100 * p.stream_idle:.0f} % | {p.seeds} | {p.ran_on} |"
        for p in found
    ]
    most, least = max(found, key=lambda p: p.speedup), min(found, key=lambda p: p.speedup)
    not_paid = [f"{p.value} ({p.release})" for p in found if p.speedup < PAYS]
    lines += [
        "",
        f"VIRTUAL: streaming is fastest against sync at {key}={most.value} ({most.release}), "
        f"{most.speedup:.2f} x, and least at {least.value} ({least.release}), "
        f"{least.speedup:.2f} x. "
        + (
            f"It does not pay at {', '.join(not_paid)}."
            if not_paid
            else "It pays at each of these values."
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parsed = arguments.parse(sys.argv[1:], ("vary", "out"), USAGE, needed=("vary",))
    if parsed is None:
        return 2
    (folder,), options = parsed
    try:
        loaded = load(folder)
        table = markdown(points(loaded.runs, options["vary"]), options["vary"])
    except ValueError as error:
        print(f"error: {folder}: {error}", file=sys.stderr)
        return 2
    arguments.give(table, loaded.left_out, options.get("out"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
