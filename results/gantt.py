"""One update of two runs, one above the other, from their timeline.json:

    python -m results.gantt RUN_A RUN_B out=update.png [update=3]

The picture that explains gradient streaming: what engine, sandboxes and learner did from the
update's start to its published weights. Times are as recorded; the caption says on which
clock, engine, sandbox and hardware.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Okabe and Ito's colours: told apart by colour-blind readers, and in greyscale by their lightness.
COLOURS = {
    "capture": "#E69F00",
    "accumulate": "#D55E00",
    "fold": "#000000",
    "step": "#000000",
    "publish": "#999999",
    "generate": "#0072B2",
    "exec": "#56B4E9",
    "collect": "#56B4E9",
    "verify": "#009E73",
    "start": "#CCCCCC",
    "stop": "#CCCCCC",
}
WORDS = {
    "capture": "backward before its group closed (streamed)",
    "accumulate": "backward with final advantages",
    "step": "fold, optimizer step",
    "publish": "publish weights",
    "generate": "engine decodes",
    "exec": "tool call, patch read",
    "verify": "hidden tests run",
    "start": "sandbox starts, stops",
}


def load_update(run: Path, update: int) -> dict[str, Any]:
    """Window (s), intervals and group closes of one update. Raises ValueError if it is not
    there."""
    with (run / "updates.csv").open() as file:
        rows = {int(row["update"]): row for row in csv.DictReader(file)}
    if update not in rows:
        raise ValueError(f"{run}: update={update} is not in updates.csv (1 to {max(rows)})")
    start_s, end_s = float(rows[update]["started_s"]), float(rows[update]["ended_s"])
    events = json.loads((run / "timeline.json").read_text())["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    inside = [e for e in events if "ts" in e and start_s <= e["ts"] / 1e6 <= end_s]
    bars = [
        (tracks[e["tid"]], e["name"], e["ts"] / 1e6 - start_s, e["dur"] / 1e6)
        for e in inside
        if e["ph"] == "X" and not tracks[e["tid"]].startswith("blocked/")
    ]
    closes = [e["ts"] / 1e6 - start_s for e in inside if e["name"] == "closed"]
    summary = json.loads((run / "summary.json").read_text())
    return {"length_s": end_s - start_s, "bars": bars, "closes": closes, "summary": summary}


def lanes(bars: Sequence[tuple[str, str, float, float]]) -> dict[str, float]:
    """Track -> height on the axis: sandboxes thin at the top, engine and learner below."""
    sandboxes = sorted({track for track, *_ in bars if track.startswith("sandbox/")})
    height = {track: 3.0 + i * 6.0 / max(1, len(sandboxes)) for i, track in enumerate(sandboxes)}
    return height | {"engine/0": 1.5, "learner/0": 0.0}


def draw(updates: Sequence[dict[str, Any]], out: Path) -> None:
    """Write the figure; `out` ends in .png or .pdf."""
    import matplotlib

    matplotlib.use("Agg")
    import seaborn
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    seaborn.set_theme(style="white", context="paper")
    figure, axes = pyplot.subplots(len(updates), 1, sharex=True, figsize=(9, 3.1 * len(updates)))
    for axis, update in zip(axes, updates, strict=True):
        heights = lanes(update["bars"])
        thin = 6.0 / max(1, len(heights) - 2)
        for track, name, start_s, length_s in update["bars"]:
            if track not in heights:
                continue
            tall = thin * 0.9 if track.startswith("sandbox/") else 1.1
            colour = COLOURS[name]
            axis.broken_barh(
                [(start_s, length_s)], (heights[track], tall), facecolors=colour, linewidth=0
            )
        for close_s in update["closes"]:
            axis.plot([close_s, close_s], [-0.35, -0.05], color="#CC79A7", linewidth=1.6)
        axis.axvline(update["length_s"], color="black", linewidth=0.8, linestyle=":")
        summary = update["summary"]
        release = f", release={summary['release']}" if summary["schedule"] == "stream" else ""
        axis.set_title(
            f"schedule={summary['schedule']}{release}: {update['length_s']:.2f} s", loc="left"
        )
        axis.set_yticks([0.55, 2.05, 6.0], ["learner", "engine", "sandboxes"])
        axis.set_ylim(-0.5, 9.2)
        seaborn.despine(ax=axis, left=True)
    axes[-1].set_xlabel("seconds since the update began")
    handles = [Patch(color=COLOURS[name], label=words) for name, words in WORDS.items()]
    handles.append(Patch(color="#CC79A7", label="a group closes"))
    figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False)
    summary = updates[0]["summary"]
    figure.text(
        0.01, 0.985,
        f"{summary['env']}/{summary['dataset']}, policy {summary['policy']}; {summary['clock']} "
        f"clock, engine {summary['engine']}, sandbox {summary['sandbox']}, {summary['hardware']}",
        va="top", fontsize=8,
    )  # fmt: skip
    figure.tight_layout(rect=(0, 0.13, 1, 0.97))
    figure.savefig(out, dpi=150)
    pyplot.close(figure)


def main() -> int:
    options = dict(a.split("=", 1) for a in sys.argv[1:] if "=" in a)
    runs = [Path(a) for a in sys.argv[1:] if "=" not in a]
    unknown = set(options) - {"out", "update"}
    if len(runs) != 2 or "out" not in options or unknown:
        print("usage: python -m results.gantt RUN_A RUN_B out=FILE.png [update=N]", file=sys.stderr)
        return 2
    try:
        draw(
            [load_update(run, int(options.get("update", 1))) for run in runs], Path(options["out"])
        )
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
