"""Updates of runs, one run above the other, from their timeline.json:

    python -m results.gantt RUN_A RUN_B [RUN_C ...] out=update.png [update=3] [count=1]

The picture that explains gradient streaming: what engine, sandboxes and learner did from the
update's start to its published weights (`count` updates in a row). Times are as recorded; the
caption says on which clock, engine, sandbox and hardware.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results import arguments
from results.style import DPI, new

# Okabe and Ito's colours: told apart by colour-blind readers, and in greyscale by their lightness.
COLOURS = {
    "capture": "#E69F00",
    "extend": "#F0E442",
    "finish": "#E69F00",
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
OTHER = "#BBBBBB"
# What is as light as its neighbours in greyscale.
HATCHES = {"capture": "////", "finish": "////", "publish": "...."}
WORDS = {
    "capture": "backward before its group closed (streamed)",
    "extend": "forward of a finished turn",
    "accumulate": "backward with final advantages",
    "step": "fold, optimizer step",
    "publish": "publish weights",
    "generate": "engine decodes",
    "exec": "tool call, patch read",
    "verify": "hidden tests run",
    "start": "sandbox starts, stops",
}


def load_update(run: Path, update: int, count: int = 1) -> dict[str, Any]:
    """Window (s), intervals and group closes of `count` updates from `update` on; what reaches into
    the window is cut at its edges. Raises ValueError if one of them is not there."""
    with (run / "updates.csv").open() as file:
        rows = {int(row["update"]): row for row in csv.DictReader(file)}
    for wanted in range(update, update + count):
        if wanted not in rows:
            raise ValueError(
                f"{run}: update={wanted} is not in updates.csv (1 to {max(rows, default=0)})"
            )
    start_s, end_s = float(rows[update]["started_s"]), float(rows[update + count - 1]["ended_s"])
    events = json.loads((run / "timeline.json").read_text())["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    bars = []
    for e in events:
        if e["ph"] != "X" or tracks[e["tid"]].startswith("blocked/"):
            continue
        left = max(e["ts"] / 1e6, start_s)
        right = min((e["ts"] + e["dur"]) / 1e6, end_s)
        if right > left:
            bars.append((tracks[e["tid"]], e["name"], left - start_s, right - left))
    closes = [
        e["ts"] / 1e6 - start_s
        for e in events
        if e["name"] == "closed" and start_s <= e["ts"] / 1e6 <= end_s
    ]
    ends = [float(rows[k]["ended_s"]) - start_s for k in range(update, update + count)]
    summary = json.loads((run / "summary.json").read_text())
    release = f", release={summary['release']}" if summary["schedule"] == "stream" else ""
    return {
        "length_s": end_s - start_s,
        "bars": bars,
        "closes": closes,
        "ends": ends,
        "summary": summary,
        "title": f"schedule={summary['schedule']}{release}",
    }


def lanes(bars: Sequence[tuple[str, str, float, float]]) -> dict[str, float]:
    """Track -> height on the axis: sandboxes thin at the top, engine and learner below."""
    sandboxes = sorted({track for track, *_ in bars if track.startswith("sandbox/")})
    height = {track: 3.0 + i * 6.0 / max(1, len(sandboxes)) for i, track in enumerate(sandboxes)}
    return height | {"engine/0": 1.5, "learner/0": 0.0}


def draw(updates: Sequence[dict[str, Any]]) -> Any:
    """The figure: one panel a run, on one time axis."""
    from matplotlib.patches import Patch

    figure, axes = new(
        9.0, 0.9 + 2.5 * len(updates), nrows=len(updates), sharex=True, squeeze=False
    )
    seen = set()
    for axis, update in zip(axes[:, 0], updates, strict=True):
        heights = lanes(update["bars"])
        thin = 6.0 / max(1, len(heights) - 2)
        ranges: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for track, name, start_s, length_s in update["bars"]:
            if track in heights:
                ranges.setdefault((track, name), []).append((start_s, length_s))
        for (track, name), spans in ranges.items():
            seen.add(name)
            tall = thin * 0.9 if track.startswith("sandbox/") else 1.1
            axis.broken_barh(
                spans, (heights[track], tall), linewidth=0,
                facecolors=COLOURS.get(name, OTHER), hatch=HATCHES.get(name),
            )  # fmt: skip
        for close_s in update["closes"]:
            axis.plot([close_s, close_s], [-0.35, -0.05], color="#CC79A7", linewidth=1.6)
        for end_s in update["ends"]:
            axis.axvline(end_s, color="black", linewidth=0.8, linestyle=":")
        lengths = " and ".join(
            f"{b - a:.2f} s" for a, b in zip([0.0, *update["ends"]], update["ends"], strict=False)
        )
        axis.set_title(f"{update['title']}: {lengths}", loc="left", fontsize=9)
        axis.set_yticks([0.55, 2.05, 6.0], ["learner", "engine", "sandboxes"])
        axis.set_ylim(-0.5, 9.2)
        axis.grid(visible=False)
        axis.spines["left"].set_visible(False)
    axes[-1, 0].set_xlabel("seconds since the first update shown began; dotted: an update's end")
    handles = [
        Patch(facecolor=COLOURS[name], hatch=HATCHES.get(name), label=words)
        for name, words in WORDS.items()
        if name in seen or (name == "capture" and "finish" in seen)
    ]
    handles.append(Patch(color="#CC79A7", label="a group closes"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def write(updates: Sequence[dict[str, Any]], out: Path) -> None:
    """The figure in a file of its own that ends in .png or .pdf, saying what it ran on."""
    from matplotlib import pyplot

    figure, summary = draw(updates), updates[0]["summary"]
    virtual = "VIRTUAL TIME (simulated): " if summary["clock"] == "virtual" else ""
    figure.suptitle(
        f"{virtual}{summary['env']}/{summary['dataset']}, policy {summary['policy']}; "
        f"{summary['clock']} clock, engine {summary['engine']}, sandbox {summary['sandbox']}, "
        f"{summary['hardware']}",
        fontsize=8,
    )
    figure.savefig(out, dpi=DPI)
    pyplot.close(figure)


def main() -> int:
    usage = "results.gantt RUN_A RUN_B [...] out=FILE.png [update=N] [count=N]"
    keys = ("out", "update", "count")
    parsed = arguments.parse(sys.argv[1:], keys, usage, at_least=2, needed=("out",))
    if parsed is None:
        return 2
    runs, options = list(map(Path, parsed[0])), parsed[1]
    try:
        first, count = int(options.get("update", 1)), int(options.get("count", 1))
        write([load_update(run, first, count) for run in runs], Path(options["out"]))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
