"""All figures of a comparison, each as PNG and PDF, with its caption and the command that made it;
what there is nothing to draw of is named with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from results import plots_learning, plots_rollouts, plots_time
from results.comparison import Comparison
from results.plots_learning import Plot
from results.style import save

PLOTS: dict[str, tuple[str, Callable[[Comparison, float | None], Plot]]] = {
    "gantt": ("Two updates, side by side", plots_time.gantt),
    "accuracy_time": ("Solve rate against time", plots_learning.accuracy_time),
    "accuracy_budget": ("Solve rate against the budget", plots_learning.accuracy_budget),
    "reward": ("Training reward", plots_learning.reward),
    "time_to_target": ("Time to the target", plots_learning.time_to_target),
    "idle": ("Busy, blocked, idle", plots_time.idle),
    "staleness": ("Staleness of trained tokens", plots_time.staleness),
    "lengths": ("Trajectory lengths and durations", plots_rollouts.lengths),
    "arrivals": ("Arrival within groups", plots_rollouts.arrivals),
    "budget_sweep": ("Budget sweep", plots_learning.budget_sweep),
    "predicted": ("Predicted against measured", plots_time.predicted),
}


@dataclass(frozen=True)
class Drawn:
    """A figure on disk. `command` makes it again."""

    key: str
    title: str
    caption: str
    files: list[Path]
    command: str


@dataclass(frozen=True)
class Omitted:
    """A figure that there was nothing for, and why."""

    key: str
    title: str
    why: str


def draw_all(
    comparison: Comparison,
    out: Path,
    command: Callable[[str], str],
    only: Sequence[str] = (),
    target: float | None = None,
) -> tuple[list[Drawn], list[Omitted]]:
    """Write every figure, or `only` some, into `out`. `command` gives the one that makes a
    figure."""
    out.mkdir(parents=True, exist_ok=True)
    ran_on = sorted({run.ran_on for run in comparison.runs})
    virtual = any(run.virtual for run in comparison.runs)
    drawn, omitted = [], []
    for key, (title, plot) in PLOTS.items():
        if only and key not in only:
            continue
        found = plot(comparison, target)
        if isinstance(found, str):
            for stale in (out / f"{key}.png", out / f"{key}.pdf"):
                stale.unlink(missing_ok=True)  # of an earlier report into the same folder
            omitted.append(Omitted(key, title, found))
            continue
        figure, caption = found
        files = save(figure, out / key, ran_on, virtual)
        mark = "VIRTUAL TIME (simulated, not measured). " if virtual else ""
        whole = f"{mark}{caption} Ran on: {'; '.join(ran_on)}."
        drawn.append(Drawn(key, title, whole, files, command(key)))
    return drawn, omitted
