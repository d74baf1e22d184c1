"""Tables: the comparison, its resources and statistics, ablations, parity; Markdown, LaTeX, CSV.

A cell has its text and, where it is a figure, the figure: CSV has figures at full length. Intervals
are 95 %, in brackets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from results import stats
from results.comparison import Comparison, Row
from results.runs import Run
from results.stats import Estimate, Reached

NONE = "-"
SHARE = " %"


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | str | None = None
    interval: tuple[float, float] | None = None


@dataclass
class Table:
    """`rows` are cells under `columns`; `notes` go below."""

    key: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns)]
        lines += [[cell.text.replace("|", "\\|") for cell in row] for row in self.rows]
        return "\n".join(
            [*("| " + " | ".join(line) + " |" for line in lines), "", *_spaced(self.notes)]
        )

    def latex(self) -> str:
        """A table environment of LaTeX's own packages and graphicx, as wide as the page."""
        body = [" & ".join(map(_tex, self.columns)) + r" \\ \hline"]
        body += [" & ".join(_tex(cell.text) for cell in row) + r" \\" for row in self.rows]
        inner = "\n".join([rf"\begin{{tabular}}{{{'l' * len(self.columns)}}} \hline", *body])
        return "\n".join(
            [
                r"\begin{table}[htbp]\centering",
                r"\resizebox{\linewidth}{!}{%",
                f"{inner} \\hline",
                r"\end{tabular}}",
                rf"\caption{{{_tex(' '.join([self.title + '.', *self.notes]))}}}",
                rf"\label{{tab:{self.key}}}",
                r"\end{table}",
            ]
        )

    def csv(self) -> str:
        """Figures at full length, the interval's ends in columns of their own where there are."""
        import pandas

        wide = [any(row[i].interval for row in self.rows) for i in range(len(self.columns))]
        header = []
        for column, has in zip(self.columns, wide, strict=True):
            header += [column, f"{column}, low", f"{column}, high"] if has else [column]
        lines = []
        for row in self.rows:
            line: list[Any] = []
            for cell, has in zip(row, wide, strict=True):
                line.append(cell.text if cell.value is None else cell.value)
                if has:
                    line += list(cell.interval or ("", ""))
            lines.append(line)
        return pandas.DataFrame(lines, columns=header, dtype=object).to_csv(index=False)


def document(tables: Sequence[Table]) -> str:
    """All tables as one LaTeX document."""
    head = (
        "\\documentclass{article}\n\\usepackage[utf8]{inputenc}\n\\usepackage[T1]{fontenc}\n"
        "\\usepackage{graphicx}\n\\begin{document}\n"
    )
    return head + "\n\n".join(t.latex() for t in tables) + "\n\\end{document}\n"


def figure(estimate: Estimate, form: str = "{:.2f}", by: float = 1.0, unit: str = "") -> Cell:
    """A figure with its interval; the figure alone where one seed gives none."""
    if estimate.value is None:
        return Cell(NONE)
    value = estimate.value * by
    text = form.format(value) + unit
    if estimate.interval is None:
        return Cell(text, value)
    low, high = (edge * by for edge in estimate.interval)
    if unit == SHARE:  # of few seeds, Student's interval reaches beyond what a share can be
        low, high = max(0.0, low), min(100.0, high)
    return Cell(f"{text} ({form.format(low)} to {form.format(high)})", value, (low, high))


def summary_figure(*keys: str) -> Callable[[Run], float | None]:
    return lambda run: run.get(*keys)


FINAL, INITIAL = summary_figure("accuracy", "final"), summary_figure("accuracy", "initial")
UPDATE_S = summary_figure("time", "per_update_s")


def main_tables(comparison: Comparison, target: float | None) -> list[Table]:
    """What was learnt and how fast; where the time went; what the seeds can tell."""
    found = [learning(comparison, target), resources(comparison)]
    more = [statistics_table(comparison)]
    return found + [table for table in more if table.rows]


def _head(row: Row) -> list[Cell]:
    kind, limit = row.budget
    mark = "VIRTUAL: " if row.virtual else ""
    return [
        Cell(mark + row.label, row.label),
        Cell(row.ran_on),
        Cell(f"{limit:g} {kind}"),
        Cell(str(len(row.runs)), len(row.runs)),
    ]


HEAD = ("schedule", "ran on", "budget", "seeds")


def learning(comparison: Comparison, target: float | None) -> Table:
    """Solve rates, the paired difference to the baseline, time to target and speed-up."""
    base = comparison.baseline
    columns = (
        *HEAD, "updates", "solve rate before", "solve rate after", f"after - {base}'s, points",
        "told apart?", "time to target, s", "update, s", f"{base} / schedule, update time",
    )  # fmt: skip
    rows = []
    for row in comparison.rows:
        difference = stats.paired_differences(*comparison.pairs(row, FINAL))
        speedup = stats.paired_ratio(*comparison.pairs(row, _positive(UPDATE_S)))
        own = comparison.paired_with(row) is row
        rows.append(
            [
                *_head(row),
                figure(row.estimate(summary_figure("updates")), "{:.1f}"),
                figure(row.estimate(INITIAL), "{:.1f}", 100, SHARE),
                figure(row.estimate(FINAL), "{:.1f}", 100, SHARE),
                Cell(NONE) if own else figure(difference, "{:+.1f}", 100),
                Cell(NONE if own else stats.verdict(difference)),
                reached_cell(reached(row, target), len(row.runs)),
                figure(row.estimate(UPDATE_S)),
                Cell("1", 1.0) if own else figure(speedup),
            ]
        )
    notes = ["95 % intervals in brackets: Student's t over seeds, of pairs with the same seed."]
    if any(len(row.runs) < 2 for row in comparison.rows):
        notes.append("Rows of one seed have no interval.")
    if target is not None:
        notes.append(
            f"Target: a solve rate of {target:.1%}. A time is that of the first weights evaluated "
            "(the budget's marks, the end) that reached it: an upper bound."
        )
    points = stats.resolution([_known(row.values(FINAL)) for row in comparison.rows])
    if points is not None:
        repeated = [len(row.runs) for row in comparison.rows if len(row.runs) > 1]
        notes.append(
            f"With {min(repeated)} seeds a difference of less than {points * 100:.1f} points "
            "between two solve rates is noise (95 %, Student's t on the spread between seeds)."
        )
    return Table("comparison", "Main comparison", columns, rows, notes)


def resources(comparison: Comparison) -> Table:
    """Where the time went: tail, idle shares, staleness, overlap, losses."""
    columns = (
        *HEAD, "tail, s", "rollout, s", "learner idle", "engine idle", "devices idle",
        "staleness, versions", "staleness, max", "overlap efficiency", "trajectories lost",
    )  # fmt: skip
    rows = []
    for row in comparison.rows:
        oldest = _known(row.values(summary_figure("staleness", "max")))
        lost = _known(row.values(summary_figure("trajectories_lost")))
        all_of = sum(_known(row.values(summary_figure("trajectories"))))
        rows.append(
            [
                *_head(row),
                figure(row.estimate(summary_figure("time", "tail_s"))),
                figure(row.estimate(summary_figure("time", "rollout_s"))),
                *(
                    figure(row.estimate(summary_figure("idle", of)), "{:.0f}", 100, SHARE)
                    for of in ("learner", "engine", "devices")
                ),
                figure(row.estimate(summary_figure("staleness", "mean"))),
                Cell(f"{max(oldest):g}", max(oldest)) if oldest else Cell(NONE),
                figure(row.estimate(summary_figure("overlap_efficiency"))),
                Cell(f"{sum(lost):g} of {all_of + sum(lost):g}", sum(lost)) if lost else Cell(NONE),
            ]
        )
    notes = [
        "Tail: from a batch's last event to the end of its optimizer step. Idle: 1 - busy inside "
        "the budget. Staleness: of trained tokens. Overlap efficiency: 1 is the earliest end that "
        "any schedule with the same releases could reach."
    ]
    return Table("resources", "Where the time went", columns, rows, notes)


def statistics_table(comparison: Comparison) -> Table:
    """Mean, median and IQM over seeds and tasks, and the probability of improvement."""
    columns = (*HEAD, "tasks", *stats.STATISTICS, "mean, stratified", "P(better than baseline)")
    rows = []
    for row in comparison.rows:
        scores = row.scores()
        if scores is None:
            continue
        other = comparison.paired_with(row)
        better: Cell = Cell(NONE)
        if other is not None and other is not row:
            theirs, ours = _same_tasks(other, row)
            if theirs is not None:
                better = figure(stats.improvement(theirs, ours))
        rows.append(
            [
                *_head(row),
                Cell(str(scores.shape[1]), scores.shape[1]),
                *(
                    figure(stats.bootstrap(scores, of), "{:.1f}", 100, SHARE)
                    for of in stats.STATISTICS.values()
                ),
                figure(stats.bootstrap(scores, stats.mean, crossed=False), "{:.1f}", 100, SHARE),
                better,
            ]
        )
    notes = [
        "Of the final weights' solve rates, seeds x tasks. 95 % percentile bootstrap, whole seeds "
        "and whole tasks drawn; 'stratified' draws seeds for each task by itself (rliable's way), "
        "which takes what one run has learnt for independent from task to task. With few seeds "
        "both are too narrow: the main table's Student intervals decide."
    ]
    return Table("statistics", "Solve rates over seeds and tasks", columns, rows, notes)


def _same_tasks(first: Row, second: Row) -> tuple[Any, Any]:
    """Scores of two rows over the tasks that all their runs have; (None, None) without any."""
    both = Row("", first.budget, (*first.runs, *second.runs)).scores()
    n = len(first.runs)
    return (None, None) if both is None else (both[:n], both[n:])


def reached(row: Row, target: float | None) -> list[Reached]:
    """Training seconds to the target of each run with a curve."""
    if target is None:
        return []
    curves = [
        [(p.seconds, p.solve_rate) for p in run.curve if p.seconds is not None] for run in row.runs
    ]
    found = [stats.time_to_target([(s, r or 0.0) for s, r in c], target) for c in curves]
    return [r for r in found if r is not None]


def reached_cell(found: Sequence[Reached], runs: int) -> Cell:
    if not found:
        return Cell(NONE)
    median = stats.median_time(found)
    n = sum(not r.censored for r in found)
    if median is None:
        at = max(r.at for r in found)
        return Cell(f"> {at:.0f} ({n} of {runs} reached it)")
    return Cell(f"{median:.0f} (median; {n} of {runs} reached it)", median)


def _positive(of: Callable[[Run], float | None]) -> Callable[[Run], float | None]:
    """A ratio has no place for a time of nothing."""

    def found(run: Run) -> float | None:
        value = of(run)
        return value if value else None

    return found


def _known(values: Sequence[float | None]) -> list[float]:
    return [v for v in values if v is not None]


_TEX: Mapping[str, str] = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)


def _spaced(lines: Sequence[str]) -> list[str]:
    return [part for line in lines for part in (line, "")]
