"""One line per schedule from the summaries of a sweep, as a Markdown table:

    python -m results.sweep multirun/DATE/TIME

Means over seeds with the standard error of the mean; runs that did not finish are named and left
out. The last column is the ratio of sync's update time to the schedule's on the same seed
(geometric mean, smallest and largest), where the sweep has both.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

HEADER = (
    "schedule", "seeds", "solve rate before", "after", "rise, points", "update, s", "tail, s",
    "learner idle", "engine idle", "sync / schedule",
)  # fmt: skip


def load(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """(finished summaries, one line for each run that is left out). Raises ValueError if none."""
    finished, left_out = [], []
    for path in sorted(folder.glob("**/summary.json")):
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            left_out.append(f"{path}: not JSON")
            continue
        if summary.get("status") == "finished":
            finished.append(summary)
        else:
            left_out.append(f"{path}: status {summary.get('status')}")
    if not finished:
        raise ValueError(f"{folder}: no finished run's summary.json below it")
    return finished, left_out


def spread(values: Sequence[float], form: str) -> str:
    """Mean and standard error of the mean; the value alone where there is one."""
    mean = form.format(fmean(values))
    if len(values) < 2:
        return mean
    return f"{mean} ± {form.format(stdev(values) / math.sqrt(len(values)))}"


def rows(summaries: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The table's rows, sync first."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for s in summaries:
        rung = f", release={s['release']}" if s["schedule"] == "stream" else ""
        shared = ", colocated" if s.get("placement") == "colocated" else ""
        groups[f"{s['schedule']}{rung}{shared}"].append(s)
    sync = {s["seed"]: s["time"]["per_update_s"] for s in groups.get("sync", [])}
    table = []
    for name in sorted(groups, key=lambda n: (n != "sync", n)):
        runs = groups[name]
        before = [r["accuracy"]["initial"] * 100 for r in runs]
        after = [r["accuracy"]["final"] * 100 for r in runs]
        ratios = [sync[r["seed"]] / r["time"]["per_update_s"] for r in runs if r["seed"] in sync]
        table.append(
            (
                name,
                str(len(runs)),
                spread(before, "{:.1f} %"),
                spread(after, "{:.1f} %"),
                spread([a - b for a, b in zip(after, before, strict=True)], "{:.1f}"),
                spread([r["time"]["per_update_s"] for r in runs], "{:.2f}"),
                spread([r["time"]["tail_s"] for r in runs], "{:.2f}"),
                spread([r["idle"]["learner"] * 100 for r in runs], "{:.0f} %"),
                spread([r["idle"]["engine"] * 100 for r in runs], "{:.0f} %"),
                ratio(ratios) if name != "sync" else "1",
            )
        )
    return table


def ratio(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = math.exp(fmean(math.log(v) for v in values))
    return f"{mean:.2f} ({min(values):.2f} to {max(values):.2f})"


def table(summaries: Sequence[dict[str, Any]]) -> str:
    """Markdown, with what ran under it: a simulated figure can not pass for a measured one."""
    lines = [HEADER, ("---",) * len(HEADER), *rows(summaries)]
    keys = ("env", "dataset", "policy", "engine", "sandbox", "clock", "hardware")
    ran = sorted({", ".join(f"{k}={s[k]}" for k in keys) for s in summaries})
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "", *ran])


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m results.sweep FOLDER", file=sys.stderr)
        return 2
    try:
        summaries, left_out = load(Path(sys.argv[1]))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    print(table(summaries))
    return 0


if __name__ == "__main__":
    sys.exit(main())
