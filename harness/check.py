"""The regression gate: has a change slowed a schedule, the ledger, the engine or virtual time?

    python -m harness.check [reference=results/reference/ci.json] [only=PREFIX,PREFIX] [--update]
                            [judge=quiet|always] [before=COMMIT]

Plays every schedule in virtual time and measures ratios inside this run, and compares both with a
committed reference (docs/checking.md). Prints what moved; exit 1 where something did. `--update`
writes the reference anew instead, `only` takes the figures whose names begin so. On another
processor than the reference's ratios are compared with those of the reference's own commit, which
is measured there too; before=COMMIT takes another one. A machine that other work keeps busy moves
them by more than a slow-down would: they are left out, and that is said, unless judge=always.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path

import psutil

from harness import entry
from harness.gate import before, reference, speeds, virtual_figures
from harness.gate.reference import Entry
from harness.hardware import cores, cpu_model, cpu_revision
from harness.manifest import git_state
from harness.protocols import UsageError

KEYS = ("reference", "only", "judge", "before")
JUDGE = ("quiet", "always")
BUSY_PERCENT, LOOK_S = 20.0, 2.0
UPDATE = "--update"
REFERENCE = Path(__file__).parents[1] / "results" / "reference" / "ci.json"


def _machine() -> str:
    name = " family ".join(filter(None, (cpu_model(), cpu_revision())))
    return f"{name}, {cores()} cores"


class _Unjudged(Exception):
    """Why ratios measured here and now say nothing about the code."""


def _ratios_here(
    path: Path, judge: str, commit: str | None, known: dict[str, Entry]
) -> dict[str, Entry]:
    """What the reference's ratios are on this machine, or those of `commit`. Raises _Unjudged."""
    measured, here = reference.measured(path), _machine()
    if judge != "always":
        busy = psutil.cpu_percent(LOOK_S)
        if busy > BUSY_PERCENT:
            raise _Unjudged(f"other work keeps {busy:.0f} % of this machine busy")
    if commit is None and (judge == "always" or here == measured.machine):
        return known
    if commit is None:
        _say(f"the reference's ratios are of {measured.machine}, this machine is {here}")
    try:
        found = before.measure(commit or measured.commit, list(known), _say)
    except before.NoSuchCode as error:
        raise _Unjudged(str(error)) from error
    return {name: dataclasses.replace(known[name], value=value) for name, value in found.items()}


def _committed(path: Path) -> str | None:
    """The commit that is measured, for a reference. Raises UsageError where the project's own would
    be of code that no commit has."""
    state = git_state(before.ROOT)
    if state is not None and not state["dirty"]:
        return state["commit"]
    if path.resolve() == REFERENCE:
        raise UsageError(
            f"{UPDATE}: ratios are of a commit, and this code is that of none; commit it first, or "
            "take another reference=FILE"
        )
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
    judge = given.get("judge", "quiet")
    if judge not in JUDGE:
        raise UsageError(f"judge={judge}: give quiet (the default) or always")
    jobs, ratios = _chosen(only)
    commit = _committed(path) if update and ratios else None
    known = {} if update and not (only and path.exists()) else reference.read(path)
    expected = {n: e for n, e in known.items() if _belongs(n, jobs, ratios, not only)}
    if ratios and not update:
        there = {n: e for n, e in expected.items() if n in ratios}
        expected = {n: e for n, e in expected.items() if n not in ratios}
        try:
            expected |= _ratios_here(path, judge, given.get("before"), there)
            ratios = [n for n in ratios if n in expected or n not in there]  # new ones are told
        except _Unjudged as why:
            _say(f"ratios are NOT judged: {why}; judge=always measures them all the same")
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
        anew = reference.Measured(_machine(), commit)
        kept = {n: e for n, e in known.items() if n not in expected}
        reference.write(
            path, kept | found, anew if ratios or not known else reference.measured(path)
        )
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
