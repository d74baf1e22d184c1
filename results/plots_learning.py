"""Figures of what was learnt: against time, against the budget, until a target, by update.

A plot takes the comparison and the target (which one figure needs) and returns (figure, caption),
or says in a line why there is nothing to draw.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from results import stats
from results.comparison import Comparison, Row
from results.stats import Estimate
from results.style import legend, marks, new
from results.tables import FINAL, reached

Plot = tuple[Any, str] | str
_APART = 0.01  # of the axis, between rows that were evaluated at the same cost
UNITS = {"updates": "updates", "trajectories": "trajectories", "tokens": "generated tokens",
         "wall_clock_s": "s", "device_s": "device seconds"}  # fmt: skip


def main_rows(comparison: Comparison) -> list[Row]:
    """The rows of one budget: that of most runs, of several the largest. A budget sweep has a
    figure of its own."""
    budgets = sorted({row.budget for row in comparison.rows}, key=lambda b: (b[0], b[1]))
    most = max(
        budgets, key=lambda b: (sum(len(r.runs) for r in comparison.rows if r.budget == b), b[1])
    )
    return [row for row in comparison.rows if row.budget == most]


@lru_cache(maxsize=64)
def curve(row: Row) -> list[tuple[float, float | None, Estimate]]:
    """(spent, seconds, solve rate) of the evaluated weights, means over seeds; the interval is the
    crossed bootstrap over seeds and tasks where samples are at hand, else Student's."""
    curves = [run.curve for run in row.runs]
    found = []
    for points in zip(*curves, strict=False):
        rates = [p.solve_rate for p in points]
        estimate = stats.t_interval(rates)
        scores = row.scores([p.phase for p in points])
        if scores is not None:
            estimate = stats.bootstrap(scores, stats.mean, resamples=1000)
        seconds = [p.seconds for p in points if p.seconds is not None]
        at_s = statistics.fmean(seconds) if len(seconds) == len(points) else None
        found.append((statistics.fmean(p.spent for p in points), at_s, estimate))
    return found


def accuracy_time(comparison: Comparison, target: float | None) -> Plot:
    return _accuracy(comparison, by_time=True)


def accuracy_budget(comparison: Comparison, target: float | None) -> Plot:
    return _accuracy(comparison, by_time=False)


def _accuracy(comparison: Comparison, by_time: bool) -> Plot:
    rows = main_rows(comparison)
    curves = {
        row.label: [(s if by_time else spent, e) for spent, s, e in curve(row)] for row in rows
    }
    curves = {
        label: [(x, e) for x, e in points if x is not None and e.value is not None]
        for label, points in curves.items()
    }
    curves = {label: points for label, points in curves.items() if len(points) > 1}
    if not curves:
        return "no run was evaluated before and after training"
    figure, axis = new()
    look = marks([row.label for row in rows])
    apart = _APART * max(x for points in curves.values() for x, _ in points)
    for n, (label, exact) in enumerate(curves.items()):
        points = [(x + apart * (n - (len(curves) - 1) / 2), e) for x, e in exact]
        xs = [x for x, _ in points]
        ys = [e.value * 100 for _, e in points if e.value is not None]
        mark = look[label]
        axis.plot(xs, ys, color=mark.colour, marker=mark.marker, linestyle=mark.line, label=label)
        _whiskers(axis, points, mark.colour)
    kind, limit = rows[0].budget
    axis.set_xlabel("training time, s" if by_time else f"budget spent, {UNITS.get(kind, kind)}")
    axis.set_ylabel("held-out solve rate, %")
    legend(figure, axis)
    single = all(len(row.runs) < 2 for row in rows)
    spread = (
        "one seed: no interval" if single else "bars: 95 %, crossed bootstrap over seeds and tasks"
    )
    return figure, (
        f"Held-out solve rate against {'training time' if by_time else 'the budget spent'} "
        f"(budget {limit:g} {kind}); points are evaluated weights, means over seeds, "
        f"moved apart by a hundredth where they would hide each other; {spread}."
    )


def _whiskers(axis: Any, points: Sequence[tuple[float, Estimate]], colour: str) -> None:
    for x, estimate in points:
        if estimate.interval is not None:
            low, high = (edge * 100 for edge in estimate.interval)
            axis.plot([x, x], [low, high], color=colour, linewidth=1.2, alpha=0.7)
            axis.plot([x, x], [low, high], color=colour, linestyle="", marker="_", alpha=0.7)


def time_to_target(comparison: Comparison, target: float | None) -> Plot:
    """Medians as bars, seeds as points; the bar of a row without a median is open."""
    rows = main_rows(comparison)
    times = [(row, found) for row in rows if (found := reached(row, target))]
    if target is None or not times:
        return "no target: the baseline was not evaluated (target=0.4 names one)"
    figure, axis = new(height=1.2 + 0.5 * len(times))
    look = marks([row.label for row in rows])
    for y, (row, found) in enumerate(times):
        median, mark = stats.median_time(found), look[row.label]
        length = max(r.at for r in found) if median is None else median
        axis.barh(
            y, length, height=0.6, color="white" if median is None else mark.colour,
            edgecolor=mark.colour if median is None else "black", hatch=mark.hatch, alpha=0.75,
        )  # fmt: skip
        for n, r in enumerate(found):
            at_y = y + 0.45 * ((n + 0.5) / len(found) - 0.5)  # seeds often end together
            axis.plot(r.at, at_y, marker=">" if r.censored else mark.marker, color="black",
                      markerfacecolor="white", markersize=6)  # fmt: skip
    axis.set_yticks(range(len(times)), [row.label for row, _ in times])
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlim(left=0)
    axis.set_xlabel(f"training time to a solve rate of {target:.1%}, s")
    return figure, (
        f"Training time until evaluated weights first solved {target:.1%} of the held-out tasks; "
        "bars: Kaplan and Meier's median over seeds, points: seeds. An arrow is a seed that had "
        "not reached it by the end, an open bar a row of which too many had not."
    )


def budget_sweep(comparison: Comparison, target: float | None) -> Plot:
    kinds: dict[str, set[float]] = {}
    for row in comparison.rows:
        kinds.setdefault(row.budget[0], set()).add(row.budget[1])
    swept = [kind for kind, limits in kinds.items() if len(limits) > 1]
    if not swept:
        return "all runs have one budget"
    rows = [r for r in comparison.rows if r.budget[0] == swept[0]]
    labels = list(dict.fromkeys(row.label for row in rows))
    look = marks(labels)
    figure, axis = new()
    drawn = False
    for label in labels:
        points = [(r.budget[1], r.estimate(FINAL)) for r in rows if r.label == label]
        points = [(x, e) for x, e in points if e.value is not None]
        mark = look[label]
        axis.plot(
            [x for x, _ in points], [e.value * 100 for _, e in points if e.value is not None],
            color=mark.colour, marker=mark.marker, linestyle=mark.line, label=label,
        )  # fmt: skip
        _whiskers(axis, points, mark.colour)
        drawn = drawn or bool(points)
    if not drawn:
        return "no run of the budget sweep was evaluated"
    axis.set_xlabel(f"budget, {UNITS.get(swept[0], swept[0])}")
    axis.set_ylabel("final held-out solve rate, %")
    legend(figure, axis)
    return figure, "Final solve rate by budget, means over seeds; bars: 95 %, Student's t."


def reward(comparison: Comparison, target: float | None) -> Plot:
    """The training reward, update by update: not a held-out figure."""
    rows = main_rows(comparison)
    figure, axis = new()
    look, drawn = marks([row.label for row in rows]), False
    for row in rows:
        series = [[u.get("reward_mean") for u in run.updates] for run in row.runs]
        updates = [[v for v in at if v is not None] for at in zip(*series, strict=False)]
        ys = [statistics.fmean(v) if v else float("nan") for v in updates]
        mark, xs = look[row.label], range(1, len(ys) + 1)
        if not any(updates):
            continue
        drawn = True
        axis.plot(xs, ys, color=mark.colour, marker=mark.marker, linestyle=mark.line,
                  markersize=4, label=row.label)  # fmt: skip
        if len(row.runs) > 1:
            edges = [(min(v), max(v)) if v else (float("nan"),) * 2 for v in updates]
            axis.fill_between(xs, [low for low, _ in edges], [high for _, high in edges],
                              color=mark.colour, alpha=0.15, linewidth=0)  # fmt: skip
    if not drawn:
        return "no updates.csv with a reward"
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("update")
    axis.set_ylabel("mean reward of the update's trajectories")
    legend(figure, axis)
    return figure, (
        "Training reward by update: means over seeds, the band from the smallest to the largest "
        "seed; up to the update that every seed made."
    )
