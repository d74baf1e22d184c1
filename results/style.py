"""How figures look: told apart by colour-blind readers and in greyscale, every figure with what it
ran on.

Okabe and Ito's colours, and with each a marker, a line and a hatch of its own: no figure depends on
colour alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++", "ooo")
STATES = {"busy": ("#0072B2", ""), "blocked": ("#E69F00", "///"), "idle": ("#F0F0F0", "")}
DPI = 160
_WRAP = 105


@dataclass(frozen=True)
class Mark:
    """How one row is drawn wherever it appears."""

    colour: str
    marker: str
    line: Any
    hatch: str


def marks(labels: Sequence[str]) -> dict[str, Mark]:
    """A mark for each label, in order; past seven the markers go on in another order."""
    found = {}
    for i, label in enumerate(dict.fromkeys(labels)):
        k, lap = i % len(_COLOURS), i // len(_COLOURS)
        turned = (k + lap) % len(_COLOURS)
        found[label] = Mark(_COLOURS[k], _MARKERS[turned], _LINES[turned], _HATCHES[turned])
    return found


def new(width: float = 7.0, height: float = 4.0, **subplots: Any) -> tuple[Figure, Any]:
    """A figure that lays itself out, and its axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams.update(
        {
            "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
            "axes.grid": True, "grid.color": "#DDDDDD", "axes.axisbelow": True,
            "hatch.linewidth": 0.7, "pdf.fonttype": 42,
        }
    )  # fmt: skip
    return pyplot.subplots(figsize=(width, height), layout="constrained", **subplots)


def legend(figure: Figure, axis: Any) -> None:
    """One legend under the axes, where it can cover nothing."""
    handles, names = axis.get_legend_handles_labels()
    columns = 1 if max(map(len, names), default=0) > 45 else min(3, len(names))
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)


def save(figure: Figure, stem: Path, ran_on: Sequence[str], virtual: bool) -> list[Path]:
    """PNG and PDF, with what it ran on under the figure."""
    from matplotlib import pyplot

    lines = [line for place in ran_on for line in textwrap.wrap(place, _WRAP)]
    if virtual:
        lines.insert(0, "VIRTUAL TIME: simulated, not measured")
    figure.draw_without_rendering()  # an outside legend may reach below the figure's edge
    figure.set_layout_engine("none")
    for outside in figure.legends:  # else a tight box would take it along to its own edge
        outside.set_bbox_to_anchor((0, 0, 1, 1), transform=figure.transFigure)
    to_figure = figure.transFigure.inverted()
    edges = [to_figure.transform_bbox(x.get_window_extent()).y0 for x in figure.legends]
    figure.text(
        0.01, min([0.0, *edges]) - 0.02, "\n".join(lines), va="top", fontsize=7, color="#333333",
        fontweight="bold" if virtual else "normal",
    )  # fmt: skip
    files = [stem.with_suffix(".png"), stem.with_suffix(".pdf")]
    for file in files:
        figure.savefig(file, dpi=DPI, bbox_inches="tight", pad_inches=0.08)
    pyplot.close(figure)
    return files
