"""One line per schedule from the summaries of a sweep, as a Markdown table:

    python -m results.sweep multirun/DATE/TIME

Means over seeds with the standard error of the mean; runs that did not finish are named and left
out. The last column is the ratio of sync's update time to the schedule's on the same seed and
budget (geometric mean, smallest and largest), where the sweep has both. Under the table: how large
a difference in solve rate would have to be to mean anything.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any

import yaml

HEADER = (
    "schedule", "budget", "seeds", "updates", "solve rate before", "after", "rise, points",
    "update, s", "tail, s", "learner idle", "engine idle", "devices idle", "staleness (max)",
    "sync / schedule",
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
            finished.append(summary | {"settings": settings(path.parent)})
        else:
            left_out.append(f"{path}: status {summary.get('status')}")
    if not finished:
        raise ValueError(f"{folder}: no finished run's summary.json below it")
    return finished, left_out


def spread(values: Sequence[float | None], form: str) -> str:
    """Mean and standard error of the mean; the value alone where there is one, and nothing where
    one is not known: a run without an update has no time of one."""
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values):
        return "-"
    values = known
    mean = form.format(fmean(values))
    if len(values) < 2:
        return mean
    return f"{mean} ± {form.format(stdev(values) / math.sqrt(len(values)))}"


def name(summary: dict[str, Any]) -> str:
    """The schedule as people call it."""
    found = summary["schedule"]
    if found == "stream":
        found += f", release={summary['release']}"
    if summary.get("placement") == "colocated":
        found += ", colocated"
    if found == "async":
        found += f", max_staleness={summary['staleness']['violations']['bound']}"
    return found


def settings(folder: Path) -> dict[str, Any]:
    """A run's configuration, dotted keys to leaves; empty where the run has left none."""
    path = folder / ".hydra" / "config.yaml"
    return dict(_leaves(yaml.safe_load(path.read_text("utf-8")))) if path.is_file() else {}


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def labels(summaries: Sequence[dict[str, Any]]) -> list[str]:
    """What each run is called: its schedule, and whatever else differs between the runs of that
    name and budget, but for the seed. Only seeds are averaged over."""
    alike: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for s in summaries:
        alike[_budget(s), name(s)].append(s)
    found = []
    for s in summaries:
        others = alike[_budget(s), name(s)]
        keys = sorted({key for o in others for key in o["settings"]} - {"seed"})
        differing = [k for k in keys if len({repr(o["settings"].get(k)) for o in others}) > 1]
        found.append(", ".join([name(s), *(f"{k}={s['settings'].get(k)}" for k in differing)]))
    return found


def _budget(summary: dict[str, Any]) -> tuple[str, float]:
    return summary["budget"]["kind"], summary["budget"]["limit"]


def rows(summaries: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The table's rows, by budget, sync first."""
    groups: dict[tuple[str, float, str], list[dict[str, Any]]] = defaultdict(list)
    for s, label in zip(summaries, labels(summaries), strict=True):
        groups[*_budget(s), label].append(s)
    table = []
    for kind, limit, what in sorted(groups, key=lambda key: (*key[:2], key[2] != "sync", key[2])):
        runs = groups[kind, limit, what]
        if len({r["seed"] for r in runs}) < len(runs):
            raise ValueError(f"{what}: the same seed twice; a repeat is no other seed")
        sync = {s["seed"]: s["time"]["per_update_s"] for s in groups.get((kind, limit, "sync"), [])}
        ratios = [
            sync[r["seed"]] / r["time"]["per_update_s"]
            for r in runs
            if r["time"]["per_update_s"] and sync.get(r["seed"])
        ]
        before = percents([r["accuracy"]["initial"] for r in runs])
        after = percents([r["accuracy"]["final"] for r in runs])
        rises = [a - b for a, b in zip(after, before, strict=True)] if before and after else []
        oldest = max(r["staleness"]["max"] or 0 for r in runs)
        table.append(
            (
                what,
                f"{limit:g} {kind}",
                str(len(runs)),
                spread([r["updates"] for r in runs], "{:.1f}"),
                spread(before, "{:.1f} %"),
                spread(after, "{:.1f} %"),
                spread(rises, "{:.1f}"),
                spread([r["time"]["per_update_s"] for r in runs], "{:.2f}"),
                spread([r["time"]["tail_s"] for r in runs], "{:.2f}"),
                *(
                    spread(percents([r["idle"].get(of) for r in runs]), "{:.0f} %")
                    for of in ("learner", "engine", "devices")
                ),
                f"{spread([r['staleness']['mean'] for r in runs], '{:.2f}')} ({oldest})",
                ratio(ratios) if what != "sync" else "1",
            )
        )
    return table


def percents(fractions: Sequence[float | None]) -> list[float]:
    """Nothing where one of them is not known."""
    known = [f * 100 for f in fractions if f is not None]
    return known if len(known) == len(fractions) else []


def resolution(summaries: Sequence[dict[str, Any]]) -> str | None:
    """The smallest difference in solve rate that the seeds could tell from noise: two-sided 95 %,
    Student's t on the spread between seeds, pooled over the rows. None where nothing repeats."""
    from scipy.stats import t

    groups: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for s, label in zip(summaries, labels(summaries), strict=True):
        if s["accuracy"]["final"] is not None:
            groups[*_budget(s), label].append(s["accuracy"]["final"] * 100)
    repeated = [g for g in groups.values() if len(g) > 1]
    if len(repeated) < 2:
        return None
    freedom = sum(len(g) - 1 for g in repeated)
    pooled = sum(variance(g) * (len(g) - 1) for g in repeated) / freedom
    seeds = min(map(len, repeated))
    points = float(t.ppf(0.975, freedom)) * math.sqrt(2 * pooled / seeds)
    return (
        f"With {seeds} seeds a difference of less than {points:.1f} points between two solve rates "
        "is noise (95 %, Student's t on the spread between seeds): the table compares times, idle "
        "time and staleness."
    )


def ratio(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = math.exp(fmean(math.log(v) for v in values))
    return f"{mean:.2f} ({min(values):.2f} to {max(values):.2f})"


def table(summaries: Sequence[dict[str, Any]]) -> str:
    """Markdown, with what ran under it: a simulated figure can not pass for a measured one."""
    lines = [HEADER, ("---",) * len(HEADER), *rows(summaries)]
    keys = ("env", "dataset", "policy", "engine", "sandbox", "clock", "hardware")
    devices = [(s.get("devices") or {}).get("total") for s in summaries]
    ran = sorted(
        {
            ", ".join([*(f"{k}={s[k]}" for k in keys), f"devices={n}"])
            for s, n in zip(summaries, devices, strict=True)
        }
    )
    noise = resolution(summaries)
    said = [noise, ""] if noise is not None else []
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "", *said, *ran])


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m results.sweep FOLDER", file=sys.stderr)
        return 2
    try:
        summaries, left_out = load(Path(sys.argv[1]))
        shown = table(summaries)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
