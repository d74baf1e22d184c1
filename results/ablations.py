"""Tables of one thing varied at a time: release rung, ledger form, group size; and of parity."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from results import stats
from results.comparison import Comparison, Row
from results.runs import Run
from results.tables import FINAL, NONE, SHARE, UPDATE_S, Cell, Table, figure, summary_figure

PUBLISHED = Path(__file__).with_name("reference") / "published.json"
# What was varied -> its value in a run; None where the run has no such thing.
VARIED: dict[str, tuple[str, Callable[[Run], object]]] = {
    "release": (
        "Release rung",
        lambda run: run.summary.get("release") if run.summary["schedule"] == "stream" else None,
    ),
    "ledger_form": ("Ledger form", lambda run: run.get("ledger", "form")),
    "group_size": ("Group size", lambda run: run.settings.get("rollout.group_size")),
}


def ablations(comparison: Comparison) -> list[Table]:
    """One table for each thing that has more than one value among the runs."""
    found = []
    for key, (title, of) in VARIED.items():
        rows = [row for row in comparison.rows if of(row.runs[0]) is not None]
        if len({str(of(row.runs[0])) for row in rows}) > 1:
            found.append(_ablation(comparison, key, title, of, rows))
    return found


def _ablation(
    comparison: Comparison,
    key: str,
    title: str,
    of: Callable[[Run], object],
    rows: list[Row],
) -> Table:
    columns = (
        title.lower(), "schedule", "ran on", "seeds", "solve rate after", "update, s", "tail, s",
        f"{comparison.baseline} / schedule", "learner idle", "overlap efficiency",
        "ledger buffers", "ledger, MB",
    )  # fmt: skip
    cells = []
    for row in rows:
        speedup = stats.paired_ratio(*comparison.pairs(row, lambda run: UPDATE_S(run) or None))
        own = comparison.paired_with(row) is row
        mark = "VIRTUAL: " if row.virtual else ""
        cells.append(
            [
                Cell(str(of(row.runs[0]))),
                Cell(mark + row.label),
                Cell(row.ran_on),
                Cell(str(len(row.runs)), len(row.runs)),
                figure(row.estimate(FINAL), "{:.1f}", 100, SHARE),
                figure(row.estimate(UPDATE_S)),
                figure(row.estimate(summary_figure("time", "tail_s"))),
                Cell("1", 1.0) if own else figure(speedup),
                figure(row.estimate(summary_figure("idle", "learner")), "{:.0f}", 100, SHARE),
                figure(row.estimate(summary_figure("overlap_efficiency"))),
                figure(row.estimate(summary_figure("ledger", "buffers_peak")), "{:.1f}"),
                figure(row.estimate(summary_figure("ledger", "bytes_peak")), "{:.1f}", 1e-6),
            ]
        )
    return Table(f"ablation_{key}", f"{title} varied", columns, cells)


def parity(comparison: Comparison) -> Table:
    """One row per run that checked its updates against the synchronous ones."""
    columns = (
        "run", "schedule", "ran on", "seed", "updates checked", "relative gradient error, max",
        "its control, max", "parameter gap", "its control", "holds",
    )  # fmt: skip
    names = (
        "gradient_relative_error_max", "control_relative_error_max", "parameter_gap",
        "control_parameter_gap",
    )  # fmt: skip
    rows = []
    for row in comparison.rows:
        for run in row.runs:
            if not run.get("parity", "checked"):
                continue
            ok = run.get("parity", "ok")
            figures = [run.get("parity", name) for name in names]
            rows.append(
                [
                    Cell(run.name),
                    Cell(("VIRTUAL: " if run.virtual else "") + row.label),
                    Cell(run.ran_on),
                    Cell(str(run.seed), run.seed),
                    Cell(str(run.get("parity", "checked")), run.get("parity", "checked")),
                    *(Cell(NONE) if f is None else Cell(f"{f:.1e}", f) for f in figures),
                    Cell(NONE if ok is None else "yes" if ok else "NO"),
                ]
            )
    notes = [
        "Control: the synchronous update with its rows permuted and packed otherwise. It holds at "
        "a gradient error of at most 3 x and a parameter gap of at most 5 x the control."
    ]
    return Table("parity", "Streamed against synchronous updates", columns, rows, notes)


def published(comparison: Comparison) -> Table:
    """Speed-ups that others have published, beside the largest of this comparison."""
    known = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    paper, nemo = known["thundersyncrl_paper"], known["nemo_rl_thundersync"]
    verl, one_step = known["verl_fully_async"], known["verl_one_step_off"]
    step, first = paper["grpo_step"], nemo["first_table"]
    cited = [
        ("stream / sync, GRPO step", step["sync"] / step["stream"], paper),
        ("async / sync, GRPO step", step["sync"] / step["async"], paper),
        ("stream / sync, iteration",
         first["batch"]["iteration"] / first["trajectory"]["iteration"], nemo),
        ("fully async / sync, 32 GPUs, step",
         verl["gpus_32"]["sync"]["step"] / verl["gpus_32"]["async_16_16"]["step"], verl),
        ("one step off / sync, FSDP2, step",
         one_step["fsdp2"]["sync_step"] / one_step["fsdp2"]["async_step"], one_step),
    ]  # fmt: skip
    rows = [
        [Cell(what), Cell(f"{ratio:.2f}", ratio), Cell(str(source["source"]))]
        for what, ratio, source in cited
    ]
    for row in comparison.rows:
        speedup = stats.paired_ratio(*comparison.pairs(row, lambda run: UPDATE_S(run) or None))
        if comparison.paired_with(row) not in (None, row) and speedup.value is not None:
            what = f"{'VIRTUAL: ' if row.virtual else ''}{row.label}, update time"
            rows.append([Cell(what), figure(speedup), Cell(f"this comparison; {row.ran_on}")])
    notes = [
        "Published figures are those of other models, hardware and workloads: context, no "
        "comparison. None was measured here."
    ]
    return Table("published", "Published speed-ups, and ours", ("what", "times", "source"), rows,
                 notes)  # fmt: skip
