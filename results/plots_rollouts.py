"""Figures of the trajectories: how long they are, how long they take, when a group's arrive."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from results.comparison import Comparison, Row
from results.plots_learning import Plot, main_rows
from results.style import Mark, legend, marks, new


def lengths(comparison: Comparison, target: float | None) -> Plot:
    """Cumulative shares of trajectories by tokens and by duration, on logarithmic axes."""
    rows = main_rows(comparison)
    look = marks([row.label for row in rows])
    whole = {row.label: _judged(row) for row in rows}
    whole = {label: lines for label, lines in whole.items() if lines}
    if not whole:
        return "no run has a trajectories.jsonl"
    figure, axes = new(8.0, 3.8, ncols=2, sharey=True)
    for label, lines in whole.items():
        tokens = [line["tokens"] for line in lines]
        seconds = [line["reward_s"] - line["started_s"] for line in lines]
        for axis, values in zip(axes, (tokens, seconds), strict=True):
            _cumulative(axis, values, look[label], label)
    for axis, unit in zip(axes, ("tokens per trajectory", "start to reward, s"), strict=True):
        axis.set_xscale("log")
        _plain(axis)
        axis.set_xlabel(unit)
    axes[0].set_ylabel("trajectories up to this, %")
    legend(figure, axes[0])
    return figure, (
        "Lengths and durations of judged training trajectories (logarithmic), as cumulative "
        "shares; all seeds."
    )


def _plain(axis: Any) -> None:
    """Numbers that can be read: 0.5, 20, 300."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _cumulative(axis: Any, values: list[float], mark: Mark, label: str) -> None:
    import seaborn

    shown = [v for v in values if v > 0]  # a logarithm has no place for 0
    seaborn.ecdfplot(x=shown, stat="percent", ax=axis, color=mark.colour, linestyle=mark.line,
                     label=label, marker=mark.marker, markevery=max(1, len(shown) // 6),
                     markersize=5)  # fmt: skip


def arrivals(comparison: Comparison, target: float | None) -> Plot:
    """When the k-th trajectory of a group has its reward."""
    rows = main_rows(comparison)
    look, drawn = marks([row.label for row in rows]), 0
    figure, axis = new()
    for row in rows:
        groups = _arrivals(row)
        if not groups:
            continue
        drawn, mark = drawn + 1, look[row.label]
        places = list(zip(*groups, strict=True))
        xs = range(1, len(places) + 1)
        middle = [statistics.median(at) for at in places]
        axis.plot(xs, middle, color=mark.colour, marker=mark.marker, linestyle=mark.line,
                  label=row.label)  # fmt: skip
        if len(groups) >= 4:
            quarters = [statistics.quantiles(at, n=4) for at in places]
            axis.fill_between(xs, [q[0] for q in quarters], [q[2] for q in quarters],
                              color=mark.colour, alpha=0.15, linewidth=0)  # fmt: skip
    if not drawn:
        return "no run has a whole group of two or more in trajectories.jsonl"
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("order of arrival within the group")
    axis.set_ylabel("reward since the group's start, s")
    legend(figure, axis)
    return figure, (
        "When a group's rewards arrive, first to last: medians over groups and seeds, the band "
        "from the first to the third quartile. The last one closes the group: what lies to its "
        "left is what streaming can use."
    )


def _judged(row: Row) -> list[dict[str, Any]]:
    return [
        line
        for run in row.runs
        for line in run.trajectories
        if line.get("reward_s") is not None and not line.get("infrastructure_error")
    ]


def _arrivals(row: Row) -> list[list[float]]:
    """Per whole group of the commonest size: seconds from its start to each reward, in order."""
    found = []
    for run in row.runs:
        groups: dict[int, list[dict[str, Any]]] = {}
        for line in run.trajectories:
            if line.get("reward_s") is not None and not line.get("infrastructure_error"):
                groups.setdefault(line["group"], []).append(line)
        for lines in groups.values():
            start_s = min(line["started_s"] for line in lines)
            found.append(sorted(line["reward_s"] - start_s for line in lines))
    sizes = Counter(map(len, found))
    commonest = max(sizes, key=lambda n: (sizes[n], n), default=0)
    return [times for times in found if len(times) == commonest > 1]
