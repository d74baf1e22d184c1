"""Progress on standard error and the closing table. ASCII only, so that any console takes it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.box import ASCII
from rich.console import Console
from rich.live import Live
from rich.table import Table

# (heading, metric, form)
_COLUMNS = (
    ("update", "update", "{:.0f}"),
    ("spent", "budget/spent", "{:.4g}"),
    ("reward", "reward/mean", "{:.3f}"),
    ("turns", "tokens/turns_mean", "{:.1f}"),
    ("idle learner", "idle/learner", "{:.0%}"),
    ("s/update", "time/per_update_s", "{:.2f}"),
)


def _console(stream: TextIO) -> Console:
    terminal = stream.isatty()
    return Console(
        file=stream, force_terminal=terminal, width=None if terminal else 80, highlight=False,
        markup=False, emoji=False, soft_wrap=not terminal,
    )  # fmt: skip


def _text(value: Any, form: str) -> str:
    return form.format(value) if isinstance(value, int | float) else "-"


def printable(text: str, stream: TextIO) -> str:
    """The text in what the stream can encode, with ? for the rest."""
    encoding = stream.encoding or "ascii"
    return text.encode(encoding, errors="replace").decode(encoding)


class Display:
    """A live panel on a terminal, one line per phase and update elsewhere.

    `update` takes the metrics that the tracker gets; what they lack is shown as '-'.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = _console(stream)
        self._live: Live | None = None
        self._phase = "setup"
        self.label = ""
        """What every line and table says first, such as that time is virtual."""
        self._metrics: dict[str, Any] = {}
        self._budget = ""
        self._began_s = time.monotonic()

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._panel, console=self._console, refresh_per_second=2,
                transient=True, redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._live.start()
        return self

    def __exit__(self, *unused: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def note(self, text: str) -> None:
        """One line that stays, such as which sandbox was taken and why."""
        marked = text if text.startswith(self.label) else self._marked() + text
        self._console.print(printable(marked, self._stream))

    def budget(self, kind: str, limit: float) -> None:
        self._budget = f"/{limit:g} {kind}"

    def phase(self, name: str) -> None:
        """What the run is doing: setup, evaluation, training, closing."""
        self._phase = name
        if self._live is None:
            self.note(f"{self._marked()}[{self._elapsed()}] {name}")

    def update(self, metrics: Mapping[str, Any]) -> None:
        """An optimizer step is done."""
        self._metrics = dict(metrics)
        if self._live is None:
            parts = (f"{title} {_text(metrics.get(key), form)}" for title, key, form in _COLUMNS)
            self.note(f"{self._marked()}[{self._elapsed()}] {', '.join(parts)}")

    def _marked(self) -> str:
        return f"{self.label} " if self.label else ""

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began_s), 60)
        return f"{minutes:02d}:{seconds:02d}"

    def _panel(self) -> Table:
        title = f"{self._marked()}{self._phase}  {self._elapsed()}"
        table = Table(box=ASCII, title=title, title_justify="left")
        for title, key, _ in _COLUMNS:
            heading = f"spent{self._budget}" if key == "budget/spent" else title
            table.add_column(heading, justify="right")
        table.add_row(*(_text(self._metrics.get(key), form) for _, key, form in _COLUMNS))
        return table


def _solve_rate(accuracy: Mapping[str, Any], name: str) -> str:
    rate, error = accuracy[name], accuracy.get(f"{name}_standard_error")
    if rate is None:
        return "-"
    return f"{rate:.1%}" if error is None else f"{rate:.1%} +- {error:.1%}"


def passes(pass_at_k: Mapping[Any, float | None] | None) -> str | None:
    """pass@2, pass@4 and so on up to the largest k; None where there is only pass@1."""
    known = {int(k): value for k, value in (pass_at_k or {}).items()}
    shown = [k for k in known if k > 1 and (k & (k - 1) == 0 or k == max(known))]
    return ", ".join(f"pass@{k} {_text(known[k], '{:.1%}')}" for k in shown) or None


def _curve(points: Sequence[Mapping[str, Any]]) -> str | None:
    """Solve rate at each mark of the budget; None without marks."""
    rates = (f"{_text(p['solve_rate'], '{:.1%}')} at {p['mark']:.0%}" for p in points)
    return ", ".join(rates) or None


def _counts(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) or "none"


def _discarded(budget: Mapping[str, Any]) -> str:
    lost = budget["discarded"]
    if lost is None or not (lost["trajectories"] or lost["unfinished"] or lost["tokens"]):
        return ""
    return (
        f", of it no update: {lost['trajectories']} trajectories and {lost['unfinished']} "
        f"unfinished, {lost['tokens']} tokens, {lost['seconds']:.1f} s"
    )


def _overlap(summary: Mapping[str, Any]) -> str:
    text = f"efficiency {_text(summary['overlap_efficiency'], '{:.2f}')}"
    played = summary.get("release_updates", {})
    rungs = ", ".join(f"{rung} x{updates}" for rung, updates in played.items())
    if not rungs:
        return text
    decide_s = _text(summary["time"]["decide_s"], "{:.3f}")
    return f"{text}, played at {rungs}; deciding took {decide_s} s an update"


def _shares(shares: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {_text(share, '{:.0%}')}" for name, share in shares.items())


def _blocked(resources: Mapping[str, Mapping[str, float | None]] | None) -> str | None:
    """Who waited for somebody else; a resource that there was none of (in a replay) is left out."""
    shares = {name: share["blocked"] for name, share in (resources or {}).items()}
    return _shares({k: v for k, v in shares.items() if v is not None}) or None


def _gpus(nvml: Mapping[str, Any] | None) -> str | None:
    if nvml is None:
        return None
    text = f"{_text(nvml['utilisation'], '{:.0%}')} utilised, {nvml['samples']} samples"
    return text if nvml["error"] is None else f"{text}, then {nvml['error']}"


def _staleness(summary: Mapping[str, Any]) -> str | None:
    """In learner versions; None where everything was fresh, as it must be."""
    stale = summary["staleness"]
    if not stale["max"]:
        return None
    text = f"mean {stale['mean']:.2f}, max {stale['max']}"
    past = stale["violations"]
    if past is None:
        return text
    return (
        f"{text}; past the bound of {past['bound']}: {past['tokens']} tokens of "
        f"{past['trajectories']} trajectories"
    )


def _stale(discarded: Mapping[str, Mapping[str, int]]) -> str | None:
    """By difficulty: dropping starves slow tasks."""
    return _counts(discarded["stale"]) if "stale" in discarded else None


def parity_line(parity: Mapping[str, Any] | None) -> str | None:
    """The `parity` part of a summary in words; None for a run that checks nothing."""
    if parity is None:
        return None
    if not parity["checked"]:
        return "no update was checked: none had a gradient of three rows or more"
    verdict = f"{parity['held']} of {parity['checked']} updates hold"
    if not parity["ok"]:
        verdict = f"DOES NOT HOLD: {verdict}"
    return (
        f"{verdict}; error up to {_text(parity['gradient_relative_error_max'], '{:.1e}')}, "
        f"control {_text(parity['control_relative_error_max'], '{:.1e}')}"
    )


def closing_table(summary: Mapping[str, Any]) -> Table:
    """What a person wants to know at the end of a run; fits 80 columns."""
    time_s, accuracy = summary["time"], summary["accuracy"]
    boxes, errors = summary["sandboxes"], summary["infrastructure_errors"]
    release = f" release={summary['release']}" if summary["release"] else ""
    shared = " colocated" if summary["placement"] == "colocated" else ""
    title = f"{summary['schedule']}{release}{shared} on {summary['env']}/{summary['dataset']}"
    if summary["trains_on_evaluation"]:
        title += " (trained on an evaluation set)"
    rows = (
        ("held-out solve rate", f"{_solve_rate(accuracy, 'initial')} before -> "
         f"{_solve_rate(accuracy, 'final')} after"),
        ("any of k samples", passes(accuracy["pass_at_k"]["final"])),
        ("over the budget", _curve(accuracy["curve"])),
        ("evaluated on", f"{accuracy['tasks']} tasks x {accuracy['samples_per_task']}"),
        ("updates", f"{summary['updates']} ({_text(time_s['per_update_s'], '{:.2f}')} s each, "
         f"tail {_text(time_s['tail_s'], '{:.2f}')} s)"),
        ("budget", f"{summary['budget']['spent']:g} of {summary['budget']['limit']:g} "
         f"{summary['budget']['kind']}{_discarded(summary['budget'])}"),
        ("warning", summary["budget"].get("warning")),
        ("idle or blocked", _shares(summary["idle"])),
        ("of it blocked", _blocked(summary["resources"])),
        ("GPUs by NVML", _gpus(summary["nvml"])),
        ("staleness", _staleness(summary)),
        ("overlap", _overlap(summary)),
        ("turn gradients", _turns(summary.get("segments"))),
        ("parity", parity_line(summary["parity"])),
        ("trajectories", f"{summary['trajectories']}, lost {summary['trajectories_lost']}"),
        ("groups too stale to train on", _stale(summary["groups_discarded"])),
        ("sandboxes", f"{summary['sandbox']}: {boxes['created']} created, {boxes['removed']} "
         f"removed, {boxes['leaked']} leaked"),
        ("infrastructure errors", _counts(errors)),
        ("agents' own failures", _counts(summary["agent_failures"])),
        ("integrity", _counts(summary["integrity"])),
        ("time", ", ".join(
            f"{label} {_text(time_s[key], '{:.1f}')} s" for label, key in (
                ("total", "total_s"), ("setup", "setup_s"), ("evaluation", "evaluation_s"),
                ("engine busy", "engine_busy_s"), ("learner busy", "learner_busy_s"))
        )),
        ("what ran", f"{summary['clock']} clock, {summary['engine']} engine, "
         f"{summary['hardware']}"),
    )  # fmt: skip
    clock = "VIRTUAL: " if summary["clock"] == "virtual" else ""
    return _table(f"{clock}{title}: {summary['status']}", rows)


def _turns(segments: Mapping[str, Any] | None) -> str | None:
    """What was held of running trajectories; None where no turns were taken."""
    if segments is None:
        return None
    line = (
        f"{segments['way']}: {segments['trajectories']} trajectories begun while they ran, "
        f"{segments['retained_tokens']} tokens kept, {segments['rerun_tokens']} run again, "
        f"peak {segments['live_bytes_peak'] / 1e6:.0f} MB"
    )
    if segments["fallbacks"]:
        line += f"; {segments['fallbacks']} fallbacks, the first: {segments['first_fallback']}"
    return line


def _table(title: str, rows: Iterable[tuple[str, str | None]]) -> Table:
    table = Table(box=ASCII, title=title, show_header=False)
    for name, value in rows:
        if value is not None:
            table.add_row(name, value)
    return table


def print_evaluation(line: Mapping[str, Any], stream: TextIO) -> None:
    """The closing line of harness.evaluate for a person; fits 80 columns."""
    rate, error = line["solve_rate"], line["standard_error"]
    shown = "nothing was judged" if rate is None else f"{rate:.1%} +- {error or 0:.1%}"
    rows = (
        ("solve rate", shown),
        ("any of k samples", passes(line["pass_at_k"])),
        ("evaluated on", f"{line['tasks']} tasks x {line['samples_per_task']}, "
         f"lost {line['lost']}"),
        ("infrastructure errors", _counts(line["infrastructure_errors"])),
    )  # fmt: skip
    title = f"{line['agent']} on {line['env']}/{line['dataset']} ({line['split']})"
    _console(stream).print(_table(title, rows))


def print_closing_table(summary: Mapping[str, Any], path: Path, stream: TextIO) -> None:
    console = _console(stream)
    console.print(closing_table(summary))
    console.print(printable(str(path), stream))
