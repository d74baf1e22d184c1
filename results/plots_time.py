"""Figures of where time goes: idle shares, staleness, and predicted against measured ends."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from results.comparison import Comparison, Row
from results.plots_learning import Plot, main_rows
from results.runs import Run
from results.style import STATES, legend, marks, new

_LEAST_SHOWN = 0.07


def idle(comparison: Comparison, target: float | None) -> Plot:
    """Busy, blocked and idle of learner, engine and sandboxes, stacked."""
    bars = []
    for row in main_rows(comparison):
        for kind in ("learner", "engine", "sandbox"):
            shares = [_shares(run, kind) for run in row.runs]
            known = [s for s in shares if s is not None]
            if known and len(known) == len(shares):
                means = {state: statistics.fmean(s[state] for s in known) for state in STATES}
                bars.append((row.label, kind, means))
    if not bars:
        return "no run has shares of busy, blocked and idle time"
    rows = len({label for label, *_ in bars})
    figure, axis = new(height=1.4 + 0.3 * len(bars) + 0.15 * rows)
    ticks, y, last = [], 0.0, bars[0][0]
    for label, kind, means in bars:
        y += 0.6 if label != last else 0.0
        last, left = label, 0.0
        for state, (colour, hatch) in STATES.items():
            share = means[state]
            axis.barh(y, share * 100, left=left * 100, height=0.85, color=colour, hatch=hatch,
                      edgecolor="black", linewidth=0.5,
                      label=state if not ticks else None)  # fmt: skip
            if share >= _LEAST_SHOWN:
                plain = {"facecolor": "white", "edgecolor": "none", "pad": 1}
                axis.text((left + share / 2) * 100, y, f"{share:.0%}", ha="center", va="center",
                          fontsize=8, color="white" if state == "busy" else "black",
                          bbox=plain if hatch else None)  # fmt: skip
            left += share
        ticks.append((y, f"{label}: {kind}"))
        y += 1.0
    axis.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlim(0, 100)
    axis.set_xlabel("share of the resource's time inside the budget, %")
    legend(figure, axis)
    return figure, (
        "What resources did inside the budget, means over seeds. Blocked: holds work that it may "
        "not do yet (docs/accounting.md)."
    )


def _shares(run: Run, kind: str) -> dict[str, float] | None:
    shares = run.get("resources", kind)
    if not shares or any(shares.get(state) is None for state in STATES):
        return None
    return shares


def staleness(comparison: Comparison, target: float | None) -> Plot:
    """How many versions old trained tokens were."""
    rows = main_rows(comparison)
    ages = {row.label: _ages(row) for row in rows}
    ages = {label: found for label, found in ages.items() if found}
    if not ages:
        return "no run has both updates with their groups and trajectories"
    oldest = max(max(found) for found in ages.values())
    figure, axis = new()
    look, width = marks([row.label for row in rows]), 0.8 / len(ages)
    for n, (label, found) in enumerate(ages.items()):
        total, mark = sum(found.values()), look[label]
        xs = [age - 0.4 + (n + 0.5) * width for age in range(oldest + 1)]
        ys = [100 * found[age] / total for age in range(oldest + 1)]
        axis.bar(xs, ys, width * 0.95, color=mark.colour, hatch=mark.hatch, edgecolor="black",
                 linewidth=0.5, label=label)  # fmt: skip
    axis.set_xticks(range(oldest + 1))
    axis.grid(axis="x", visible=False)
    axis.set_xlabel("staleness when trained on, learner versions")
    axis.set_ylabel("trained tokens, %")
    legend(figure, axis)
    return figure, (
        "Staleness of trained tokens: the learner's version before the update, less the version "
        "that made the token; all seeds."
    )


def _ages(row: Row) -> Counter[int]:
    """Staleness -> trained tokens."""
    found: Counter[int] = Counter()
    for run in row.runs:
        before = {
            int(group): int(update["version"]) - 1
            for update in run.updates
            if update.get("version") is not None
            for group in (update.get("groups") or "").split()
        }
        for line in run.trajectories:
            if line.get("infrastructure_error") or line.get("group") not in before:
                continue
            for version, start, end in line["version_spans"]:
                found[before[line["group"]] - version] += end - start
    return found


def predicted(comparison: Comparison, target: float | None) -> Plot:
    """The overlap model's end of each update against the end that was measured."""
    rows = main_rows(comparison)
    look, most = marks([row.label for row in rows]), 0.0
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        column = "t_sync_s" if row.runs[0].summary["schedule"] == "sync" else "t_star_s"
        points[row.label] = [
            (u[column], u["t_s"])
            for run in row.runs
            for u in run.updates
            if u.get(column) is not None and u.get("t_s") is not None
        ]
    points = {label: found for label, found in points.items() if found}
    if not points:
        return "no run has predicted ends of its updates"
    figure, axis = new(5.2, 5.2)
    for label, found in points.items():
        mark = look[label]
        axis.plot([x for x, _ in found], [y for _, y in found], linestyle="", marker=mark.marker,
                  color=mark.colour, markersize=5, alpha=0.7, label=label)  # fmt: skip
        most = max(most, *(max(pair) for pair in found))
    axis.plot([0, most * 1.05], [0, most * 1.05], color="black", linewidth=0.8, linestyle=":")
    axis.set_xlim(0, most * 1.05)
    axis.set_ylim(0, most * 1.05)
    axis.set_xlabel("predicted end of the update's gradients, s")
    axis.set_ylabel("measured, s")
    legend(figure, axis)
    return figure, (
        "One point per update, from its start to the end of its gradients. Predicted from its own "
        "arrival times and backward costs: for sync its end, for streaming the earliest end that "
        "any schedule could reach (T*). On the dotted line they agree."
    )


def gantt(comparison: Comparison, target: float | None) -> Plot:
    """Two updates of one run of each schedule, one above the other."""
    from results.gantt import draw, load_update

    found: dict[str, Any] = {}
    for row in main_rows(comparison):
        schedule = row.runs[0].summary["schedule"]
        for run in row.runs:
            done = len(run.updates)
            folder = run.folder if run.file("timeline.json") else None
            if schedule not in found and folder is not None and done >= 2:
                found[schedule] = load_update(folder, min(2, done - 1), count=2) | {
                    "title": f"{row.label}, seed {run.seed}"
                }
    if not found:
        return "no run has a timeline.json and two updates"
    order = [s for s in ("sync", "one_step_off", "async", "stream") if s in found]
    return draw([found[schedule] for schedule in order]), (
        "Two consecutive updates of one run of each schedule, on one time axis. Bars are what the "
        "engine, the sandboxes (one line each) and the learner did; a mark under the learner is a "
        "group's close."
    )
