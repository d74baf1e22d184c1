"""Tables, figures and one self-contained report.html of a comparison:

    python -m results.report runs=DIR_OR_EXPERIMENT out=DIR [uri=sqlite:///FILE|http://HOST:PORT]
        [vary=KEY,KEY] [baseline=sync] [target=0.4] [only=KEY,KEY] [--watch] [interval=10]

`vary` names what else than schedule and seed differs on purpose; `target` is the solve rate that
times are taken to (the baseline's mean final one). `only` writes some tables and figures alone.
`--watch` writes the report again whenever a run has gone on, until none is under way. Exit codes: 0
written, 2 a usage error or no comparison, in one line.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from results.ablations import ablations, parity, published
from results.comparison import BASELINE, Comparison
from results.load import LeftOut, Loaded, load, unchecked
from results.runs import read_updates
from results.tables import Table, document, main_tables

_KEYS = ("runs", "out", "uri", "vary", "baseline", "target", "only", "interval")
_PACKAGES = ("matplotlib", "numpy", "scipy", "mlflow")


@dataclass(frozen=True)
class Options:
    runs: str
    out: Path
    uri: str | None = None
    vary: tuple[str, ...] = ()
    baseline: str = BASELINE
    target: float | None = None
    only: tuple[str, ...] = ()
    interval: float = 10.0
    watch: bool = False


def parse(arguments: Sequence[str]) -> Options:
    """Raises ValueError for what is no option or has no such value."""
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if argument == "--watch":
            continue
        if not equals or key not in _KEYS:
            raise ValueError(f"{argument}: no such option; there are {', '.join(_KEYS)}, --watch")
        given[key] = value
    for key in ("runs", "out"):
        if not given.get(key):
            raise ValueError(f"{key}= is missing: python -m results.report runs=DIR out=DIR")
    numbers = {}
    for key in ("target", "interval"):
        if key in given:
            try:
                numbers[key] = float(given[key])
            except ValueError:
                raise ValueError(f"{key}={given[key]}: a number is needed") from None
            if numbers[key] <= 0:
                raise ValueError(f"{key}={given[key]}: more than 0 is needed")
    from results.figures import PLOTS

    only = tuple(key for key in given.get("only", "").split(",") if key)
    known = {*PLOTS, *TABLES}
    if unknown := [k for k in only if k not in known and not k.startswith("ablation_")]:
        raise ValueError(f"only={','.join(unknown)}: there are {', '.join(sorted(known))}")
    return Options(
        runs=given["runs"],
        out=Path(given["out"]),
        uri=given.get("uri"),
        vary=tuple(key for key in given.get("vary", "").split(",") if key),
        baseline=given.get("baseline", BASELINE),
        only=only,
        watch="--watch" in arguments,
        **numbers,
    )


TABLES = ("comparison", "resources", "statistics", "parity", "published")


def tables_of(comparison: Comparison, target: float | None) -> list[Table]:
    """Those that have rows."""
    found = [*main_tables(comparison, target), *ablations(comparison), parity(comparison)]
    return [table for table in [*found, published(comparison)] if table.rows]


def build(options: Options, loaded: Loaded, refresh_s: float | None = None) -> list[Path]:
    """Write everything; returns the files. Raises ValueError where there is no comparison, but
    not while runs are under way: then the page has those alone."""
    from results.figures import Drawn, Omitted, draw_all
    from results.page import page

    out, only = options.out, options.only
    out.mkdir(parents=True, exist_ok=True)
    tables: list[Table] = []
    drawn: list[Drawn] = []
    omitted: list[Omitted] = []
    comparison, target = None, options.target
    if loaded.runs or not (refresh_s and loaded.under_way):
        comparison = Comparison(loaded.runs, loaded.swept | {*options.vary}, options.baseline)
        target = comparison.target() if target is None else target
        tables = [t for t in tables_of(comparison, target) if not only or t.key in only]

        def again(key: str) -> str:
            return command(options, key)

        plots = tuple(key for key in only if key not in {t.key for t in tables})
        if not only or plots:
            drawn, omitted = draw_all(comparison, out / "figures", again, plots, target)
    files = [file for figure in drawn for file in figure.files] + _write_tables(tables, out, only)
    if only:
        return files
    manifest = describe(options, loaded, comparison, target, drawn, omitted, tables)
    (out / "report.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    text = page(
        f"Training schedules compared: {Path(options.runs).name or options.runs}",
        tables, drawn, omitted,
        virtual=any(run.virtual for run in loaded.runs),
        warnings=unchecked(loaded.runs) + _single(comparison),
        under_way=[_progress(left) for left in loaded.under_way] if refresh_s else [],
        manifest=manifest,
        refresh_s=refresh_s,
    )  # fmt: skip
    partial = out / ".report.html"  # a browser never sees half a page
    partial.write_text(text, encoding="utf-8")
    partial.replace(out / "report.html")
    return [*files, out / "report.json", out / "report.html"]


def _single(comparison: Comparison | None) -> list[str]:
    """What a reader must not read into single seeds."""
    single = [r.label for r in comparison.rows if len(r.runs) < 2] if comparison else []
    return [f"one seed, no interval: {'; '.join(single)}"] if single else []


def _write_tables(tables: Sequence[Table], out: Path, only: Sequence[str]) -> list[Path]:
    folder = out / "tables"
    folder.mkdir(exist_ok=True)
    texts = {}
    for table in tables:
        texts[f"{table.key}.md"] = f"{table.title}\n\n{table.markdown()}"
        texts[f"{table.key}.tex"] = table.latex() + "\n"
        texts[f"{table.key}.csv"] = table.csv()
    if not only:
        texts["tables.tex"] = document(tables)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def command(options: Options, key: str | None = None) -> str:
    """The shell command that makes the report again, or one table or figure of it."""
    parts = [f"runs={options.runs}", f"out={options.out}"]
    parts += [f"uri={options.uri}"] if options.uri else []
    parts += [f"vary={','.join(options.vary)}"] if options.vary else []
    parts += [f"baseline={options.baseline}"] if options.baseline != BASELINE else []
    parts += [f"target={options.target:g}"] if options.target is not None else []
    parts += [f"only={key}"] if key else []
    return shlex.join(["python", "-m", "results.report", *parts])


def describe(
    options: Options,
    loaded: Loaded,
    comparison: Comparison | None,
    target: float | None,
    drawn: Sequence[Any],
    omitted: Sequence[Any],
    tables: Sequence[Table],
) -> dict[str, Any]:
    """report.json: what was compared, from which runs, and the command behind every figure."""
    rows = comparison.rows if comparison else []
    label = {run.name: row.label for row in rows for run in row.runs}
    return {
        "schema_version": 1,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command(options),
        "source": loaded.source,
        "baseline": options.baseline,
        "target": target,
        "varied_on_purpose": sorted(loaded.swept | {*options.vary}),
        "versions": {"python": platform.python_version()} | {p: version(p) for p in _PACKAGES},
        "runs": [
            {
                "run": run.name,
                "row": label.get(run.name),
                "seed": run.seed,
                "commit": ((run.manifest.get("git") or {}).get("commit") or "")[:12] or None,
                "command": shlex.join(map(str, run.manifest.get("command") or [])) or None,
                "summary_sha256": hashlib.sha256(
                    json.dumps(run.summary, sort_keys=True).encode()
                ).hexdigest()[:16],
            }
            for run in loaded.runs
        ],
        "left_out": [str(left) for left in loaded.left_out],
        "figures": {
            d.key: {"files": [f.name for f in d.files], "command": d.command} for d in drawn
        },
        "not_drawn": {o.key: o.why for o in omitted},
        "tables": {t.key: command(options, t.key) for t in tables},
    }


def _progress(left: LeftOut) -> dict[str, Any]:
    """What a run that is under way has done so far."""
    path = left.folder / "updates.csv" if left.folder else None
    rows = read_updates(path if path is not None and path.is_file() else None)
    last = rows[-1] if rows else {}
    return {
        "run": left.name,
        "updates": len(rows) if left.folder else None,
        "budget spent": last.get("budget_spent"),
        "last update, s": last.get("per_update_s"),
        "its mean reward": last.get("reward_mean"),
    }


def watch(options: Options) -> None:
    """Write the report whenever what it is made of has changed, until no run is under way."""
    seen: Any = None
    while True:
        loaded = load(options.runs, options.uri)
        now = (
            [(run.name, run.summary) for run in loaded.runs],
            [(str(left), _progress(left)) for left in loaded.left_out],
        )
        going = bool(loaded.under_way)
        if now != seen:
            build(options, loaded, options.interval if going else None)
            say(f"{len(loaded.runs)} finished, {len(loaded.under_way)} under way: "
                f"{options.out / 'report.html'}")  # fmt: skip
            seen = now
        if not going:
            return
        time.sleep(options.interval)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    if not sys.argv[1:] or {"-h", "--help"} & set(sys.argv):
        print(__doc__, file=sys.stderr)
        return 0 if sys.argv[1:] else 2
    try:
        options = parse(sys.argv[1:])
        if options.watch:
            watch(options)
            return 0
        loaded = load(options.runs, options.uri)
        for left in loaded.left_out:
            say(f"left out: {left}")
        files = build(options, loaded)
        for line in unchecked(loaded.runs):
            say(f"note: {line}")
    except (ValueError, OSError) as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    if not sys.stdout.isatty():
        print(json.dumps({"runs": len(loaded.runs), "left_out": len(loaded.left_out),
                          "files": [str(file) for file in files]}))  # fmt: skip
    else:
        print(files[-1] if files else "nothing to write")
    return 0


if __name__ == "__main__":
    sys.exit(main())
