"""The regression gate: has a change slowed a schedule, the ledger, the engine or virtual time?

    python -m harness.check [reference=results/reference/ci.json] [only=PREFIX,PREFIX] [--update]
                            [judge=quiet|always]

Plays every schedule in virtual time and measures ratios inside this run, and compares both with a
committed reference (docs/checking.md). Prints what moved; exit 1 where something did. `--update`
writes the reference anew instead, `only` takes the figures whose names begin so. Ratios of a
machine that other work keeps busy, or of another processor than the reference's, differ by more
than a slow-down would make them: they are left out, and that is said, unless judge=always.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import psutil

from harness import entry
from harness.gate import reference, speeds, virtual_figures
from harness.gate.reference import Entry
from harness.hardware import cores, cpu_model, cpu_revision
from harness.protocols import UsageError

KEYS = ("reference", "only", "judge")
JUDGE = ("quiet", "always")
BUSY_PERCENT, LOOK_S = 20.0, 2.0
UPDATE = "--update"
REFERENCE = Path(__file__).parents[1] / "results" / "reference" / "ci.json"


def _machine() -> str:
    name = " family ".join(filter(None, (cpu_model(), cpu_revision())))
    return f"{name}, {cores()} cores"


def _unjudged(path: Path, judge: str) -> str | None:
    """Why ratios measured here and now say nothing about the code; None where they do."""
    if judge not in JUDGE:
        raise UsageError(f"judge={judge}: give quiet (the default) or always")
    if judge == "always":
        return None
    there, here = reference.measured_on(path), _machine()
    if here != there:
        return f"the reference's are of {there}, this machine is {here}"
    busy = psutil.cpu_percent(LOOK_S)
    if busy > BUSY_PERCENT:
        return f"other work keeps {busy:.0f} % of this machine busy"
    return None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _chosen(only: str) -> tuple[list[str], list[str]]:
    """(jobs in virtual time, ratios). Raises UsageError where `only` names nothing."""
    prefixes = tuple(part for part in only.split(",") if part) or ("",)
    jobs = [job for job in virtual_figures.JOBS if f"virtual/{job}/".startswith(prefixes)]
    ratios = [name for name in speeds.SPEEDS if name.startswith(prefixes)]
    if not jobs and not ratios:
        there = ", ".join([*(f"virtual/{job}" for job in virtual_figures.JOBS), *speeds.SPEEDS])
        raise UsageError(f"only={only}: no figure begins so; there is: {there}")
    return jobs, ratios


def _belongs(name: str, jobs: list[str], ratios: list[str], everything: bool) -> bool:
    """Whether a figure of the reference is one of those that are looked at."""
    return everything or name in ratios or name.startswith(tuple(f"virtual/{j}/" for j in jobs))


def compare(expected: dict[str, Entry], found: dict[str, Entry]) -> list[str]:
    """A line for each figure that moved, is missing or is new."""
    names = sorted(expected.keys() | found.keys())
    lines = (reference.moved(name, expected.get(name), found.get(name)) for name in names)
    return [line for line in lines if line is not None]


def check(arguments: list[str]) -> list[str]:
    """What moved; nothing after an update. Raises UsageError."""
    update = UPDATE in arguments
    usage = f"python -m harness.check [reference=FILE] [only=PREFIX,PREFIX] [{UPDATE}]"
    given = entry.settings([a for a in arguments if a != UPDATE], KEYS, (), usage)
    path, only = Path(given.get("reference", REFERENCE)).expanduser(), given.get("only", "")
    jobs, ratios = _chosen(only)
    why = None
    if ratios and not update:
        why = _unjudged(path, given.get("judge", "quiet"))
    known = {} if update and not (only and path.exists()) else reference.read(path)
    expected = {n: e for n, e in known.items() if _belongs(n, jobs, ratios, not only)}
    if why is not None:
        _say(f"ratios are NOT judged: {why}; judge=always measures them all the same")
        expected = {n: e for n, e in expected.items() if n not in ratios}
        ratios = []
    found: dict[str, Entry] = {}
    if jobs:
        with tempfile.TemporaryDirectory(prefix="harness-check-") as folder:
            found |= virtual_figures.measure(jobs, Path(folder))
    if ratios:
        if update:
            found |= speeds.measure_anew(ratios, _say)
        else:
            found |= speeds.measure(ratios, expected, _say)
    moved = compare(expected, found)
    for line in moved:
        _say(f"moved: {line}")
    if update:
        machine = _machine() if ratios or not known else reference.measured_on(path)
        kept = {n: e for n, e in known.items() if n not in expected}
        reference.write(path, kept | found, machine)
        _say(f"wrote {len(found)} figures to {path}; commit it together with the reason")
        return []
    for name in ratios:
        _say(f"{name}: {found[name].value:.4g} {found[name].unit}")
    _say(f"{len(found)} figures, {len(moved)} moved from {path}")
    return moved


def main() -> int:
    moved: list[str] = []

    def body() -> None:
        moved.extend(check(sys.argv[1:]))
        print(json.dumps({"moved": moved}), flush=True)

    return entry.guarded(body, __doc__) or (1 if moved else 0)


if __name__ == "__main__":
    sys.exit(main())
