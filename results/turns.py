"""What turn gradients cost, drawn from what thundersync.segments_bench printed:

    python -m results.turns BENCH.json [BENCH.json ...] out=turns.png

A row of panels for each policy: learner seconds, seconds left after the last token, and peak
memory, against the number of turns. Several files of one policy are put together; `recompute`,
which is quadratic and would flatten the others, is left to the table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from results import arguments

# Okabe and Ito's colours.
WAYS = {"whole": "#000000", "retain": "#E69F00", "sweep": "#0072B2"}
PANELS = {
    "learner_s": "learner, s in all",
    "tail_s": "left after the last token, s",
    "peak_bytes": "peak memory, MB",
}
Row = Mapping[str, Any]


def load(files: Sequence[Path]) -> dict[str, list[Row]]:
    """Policy -> rows. Raises ValueError for a file that is no such table."""
    found: dict[str, list[Row]] = {}
    for file in files:
        text = file.read_text(encoding="utf-8").strip()
        try:
            table = json.loads(text.splitlines()[-1])
            found.setdefault(table["policy"], []).extend(table["rows"])
        except (IndexError, KeyError, ValueError) as error:
            raise ValueError(f"{file}: no closing line of thundersync.segments_bench") from error
    return found


def line(rows: Sequence[Row], way: str, column: str) -> tuple[list[int], list[float]]:
    """Turns and values of one way, in order."""
    points = sorted((row["turns"], row[column]) for row in rows if row["way"] == way)
    scale = 1e6 if column == "peak_bytes" else 1.0
    return [turns for turns, _ in points], [value / scale for _, value in points]


def draw(found: Mapping[str, Sequence[Row]], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(found), len(PANELS), figsize=(10, 2.9 * len(found)), squeeze=False
    )
    for own, (policy, rows) in zip(axes, found.items(), strict=True):
        for axis, (column, title) in zip(own, PANELS.items(), strict=True):
            for way, colour in WAYS.items():
                turns, values = line(rows, way, column)
                if turns:
                    axis.plot(turns, values, color=colour, marker="o", markersize=3, label=way)
            counts = sorted({row["turns"] for row in rows})
            axis.set_xscale("log", base=2)
            axis.set_xticks(counts, [str(count) for count in counts])
            axis.set_ylim(bottom=0)
            axis.set_title(f"{policy}: {title}", fontsize=9, loc="left")
            axis.set_xlabel("turns")
            axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(WAYS), frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(out, dpi=150)
    pyplot.close(figure)


def main() -> int:
    usage = "results.turns BENCH.json ... out=FILE.png"
    parsed = arguments.parse(sys.argv[1:], ("out",), usage, at_least=1, needed=("out",))
    if parsed is None:
        return 2
    files, options = list(map(Path, parsed[0])), parsed[1]
    try:
        draw(load(files), Path(options["out"]))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
