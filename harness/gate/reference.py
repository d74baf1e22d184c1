"""The committed reference: figures that any machine gives, each with its rule.

`exact`: equal to twelve digits; figures of virtual time, whose last bits may hang on a library's
exponential function. `ratio`: two measurements of one process, within a tolerance of the value.
Seconds of a machine have no place here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harness.protocols import UsageError

DIGITS = 12
RULES = ("exact", "ratio")
SCHEMA_VERSION = 3
KEYS = {"schema_version", "ratios_measured_on", "ratios_of_commit", "figures"}
WAY_OUT = "take the committed file (git checkout), or write it anew: python -m harness.check"


@dataclass(frozen=True)
class Entry:
    """`tolerance` is a ratio's, as a fraction of `value`; None for what is exact."""

    value: float
    rule: Literal["exact", "ratio"]
    unit: str
    tolerance: float | None = None


def read(path: Path) -> dict[str, Entry]:
    """Raises UsageError, one line, for a file that is missing or not a reference."""
    content = _content(path)
    return {name: _entry(path, name, given) for name, given in content["figures"].items()}


@dataclass(frozen=True)
class Measured:
    """Of which machine the ratios are, and of which commit's code (None: of none)."""

    machine: str
    commit: str | None


def measured(path: Path) -> Measured:
    """Raises UsageError as `read` does."""
    content = _content(path)
    return Measured(content["ratios_measured_on"], content["ratios_of_commit"])


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _refused(path, str(error)) from error
    if not isinstance(content, dict) or set(content) != KEYS:
        raise _refused(path, f"it must have {', '.join(sorted(KEYS))}, and nothing else")
    if content["schema_version"] != SCHEMA_VERSION:
        raise _refused(
            path, f"schema_version {content['schema_version']}, this code has {SCHEMA_VERSION}"
        )
    if not isinstance(content["figures"], dict) or not content["figures"]:
        raise _refused(path, "figures must map names to entries")
    if not isinstance(content["ratios_measured_on"], str):
        raise _refused(path, f"ratios_measured_on {content['ratios_measured_on']!r} is no text")
    if not isinstance(content["ratios_of_commit"], str | None):
        raise _refused(path, f"ratios_of_commit {content['ratios_of_commit']!r} is no commit")
    return content


def _refused(path: Path, why: str) -> UsageError:
    return UsageError(f"reference={path}: {why}; {WAY_OUT} reference={path} --update")


def _entry(path: Path, name: str, given: Any) -> Entry:
    if not isinstance(given, dict):
        raise _refused(path, f"{name}: {given!r} is no entry")
    ratio = given.get("rule") == "ratio"
    keys = {"value", "rule", "unit"} | ({"tolerance"} if ratio else set())
    if given.get("rule") not in RULES or set(given) != keys:
        raise _refused(
            path,
            f"{name}: an entry has value, unit and rule (exact, or ratio and then a tolerance), "
            f"this one has {', '.join(map(str, given)) or 'nothing'} and rule {given.get('rule')}",
        )
    if not isinstance(given["unit"], str):
        raise _refused(path, f"{name}: unit {given['unit']!r} is no text")
    for key in ("value", "tolerance"):
        if key in given and not _finite(given[key]):
            raise _refused(path, f"{name}: {key} {given[key]!r} is no finite number")
    if ratio and not (0 < given["tolerance"] < 1 and given["value"] > 0):
        raise _refused(path, f"{name}: a ratio is above 0, and its tolerance between 0 and 1")
    return Entry(**given)


def _finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def write(path: Path, figures: Mapping[str, Entry], ratios: Measured) -> None:
    """One line a figure, in order of their names, so that a change is read as a diff."""
    lines = []
    for name in sorted(figures):
        entry = asdict(figures[name])
        if entry["tolerance"] is None:
            del entry["tolerance"]
        digits = DIGITS if entry["rule"] == "exact" else 4
        entry["value"] = float(f"{entry['value']:.{digits}g}")
        lines.append(f"  {json.dumps(name)}: {json.dumps(entry)}")
    body = ",\n".join(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'{{\n "schema_version": {SCHEMA_VERSION},\n'
        f' "ratios_measured_on": {json.dumps(ratios.machine)},\n'
        f' "ratios_of_commit": {json.dumps(ratios.commit)},\n'
        f' "figures": {{\n{body}\n }}\n}}\n',
        encoding="utf-8",
    )


def moved(name: str, expected: Entry | None, found: Entry | None) -> str | None:
    """What is to be said of a figure; None where it is where it was."""
    if expected is None:
        assert found is not None
        return f"{name}: {found.value:.6g} {found.unit}, and the reference does not have it"
    if found is None:
        return f"{name}: the reference has {expected.value:.6g} {expected.unit}, this run has none"
    told = (expected.rule, expected.unit, expected.tolerance)
    if told != (found.rule, found.unit, found.tolerance):
        return (
            f"{name}: the reference says {told}, the code {found.rule, found.unit, found.tolerance}"
        )
    if within(expected, found.value):
        return None
    change = f"{found.value / expected.value - 1:+.3%}" if expected.value else "from nothing"
    allowed = (
        f"more than {expected.tolerance:.1%}" if expected.tolerance else f"exact to {DIGITS} digits"
    )
    return f"{name}: {_shown(expected)} -> {_shown(found)} {found.unit} ({change}; rule: {allowed})"


def within(expected: Entry, value: float) -> bool:
    """Whether a value obeys the reference's rule."""
    if expected.rule == "ratio":
        assert expected.tolerance is not None
        return abs(value / expected.value - 1) <= expected.tolerance
    return abs(value - expected.value) <= 10.0 ** (1 - DIGITS) * abs(expected.value)


def _shown(entry: Entry) -> str:
    return f"{entry.value:.{DIGITS if entry.rule == 'exact' else 4}g}"
