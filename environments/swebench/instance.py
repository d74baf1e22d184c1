"""SWE-bench's instance record (as the swebench package, 5.0.2, reads it), and its validation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from environments.protocols import UsageError

START_TEST_OUTPUT = ">>>>> Start Test Output"  # swebench.harness.constants, without its imports
END_TEST_OUTPUT = ">>>>> End Test Output"
TESTS_ERROR = ">>>>> Tests Errored"
APPLY_PATCH_FAIL = ">>>>> Patch Apply Failed"
EVAL_TYPES = ("pass_and_fail", "fail_only")
HEREDOC = "EOF_114329324912"

_TEXT = ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch")
_TEXT += ("version", "image", "eval_script", "log_parser", "eval_type")
_TESTS = ("FAIL_TO_PASS", "PASS_TO_PASS")


@dataclass(frozen=True)
class Instance:
    """One task. `files` holds the working tree at base_commit where no image carries it."""

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str = field(repr=False)
    test_patch: str = field(repr=False)
    FAIL_TO_PASS: tuple[str, ...]
    PASS_TO_PASS: tuple[str, ...]
    version: str
    image: str
    eval_script: str = field(repr=False)
    log_parser: str
    eval_type: str = "pass_and_fail"
    split: str = "test"
    difficulty: str = "unknown"
    files: Mapping[str, str] | None = field(default=None, repr=False)

    def record(self) -> dict[str, Any]:
        """The instance as SWE-bench writes it: a flat dict, test lists as JSON-able lists."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in _TESTS:
            record[name] = list(record[name])
        if self.files is None:
            del record["files"]
        return record


def parse_instance(record: Mapping[str, Any], where: str = "instance") -> Instance:
    """Check a record and make an Instance of it.

    Raises UsageError, one line with the instance and the field, for a missing or malformed field.
    Test lists may be JSON text, as in the published data sets. Unknown fields are ignored.
    """
    name = record.get("instance_id")
    label = f"{where} {name!r}" if isinstance(name, str) and name else where

    def fail(key: str, problem: str) -> UsageError:
        return UsageError(f"{label}: field {key!r} {problem}")

    values: dict[str, Any] = {}
    for key in _TEXT:
        if key not in record:
            raise fail(key, "is missing")
        if not isinstance(record[key], str) or not record[key].strip():
            raise fail(key, f"must be non-empty text, not {_shown(record[key])}")
        values[key] = record[key]
    for key in _TESTS:
        if key not in record:
            raise fail(key, "is missing")
        values[key] = _tests(record[key])
        if values[key] is None:
            raise fail(key, f"must be a list of test names, not {_shown(record[key])}")
    if not values["FAIL_TO_PASS"]:
        raise fail("FAIL_TO_PASS", "names no test, so nothing would show that the bug is fixed")
    both = sorted(set(values["FAIL_TO_PASS"]) & set(values["PASS_TO_PASS"]))
    if both:
        raise fail("PASS_TO_PASS", f"repeats {both[0]!r} of FAIL_TO_PASS")
    if not re.fullmatch(r"[0-9a-f]{40}", values["base_commit"]):
        raise fail("base_commit", f"must be 40 hex digits, not {_shown(values['base_commit'])}")
    if values["eval_type"] not in EVAL_TYPES:
        raise fail("eval_type", f"must be one of {EVAL_TYPES}, not {_shown(values['eval_type'])}")
    for key in ("patch", "test_patch"):
        if not patched_files(values[key]):
            raise fail(key, "is not a git diff: it has no 'diff --git a/… b/…' line")
    for marker in (START_TEST_OUTPUT, END_TEST_OUTPUT):
        if marker not in values["eval_script"]:
            raise fail("eval_script", f"lacks the marker {marker!r}")
    for key in ("split", "difficulty"):
        if isinstance(record.get(key), str):
            values[key] = record[key]
    files = record.get("files")
    if files is not None:
        good = isinstance(files, Mapping) and all(
            isinstance(k, str) and isinstance(v, str) for k, v in files.items()
        )
        if not good:
            raise fail("files", "must map paths to text")
        values["files"] = files
    return Instance(**values)


def parse_instances(records: Iterable[Mapping[str, Any]], where: str) -> list[Instance]:
    """Parse all records of one data set; raises UsageError for a repeated instance_id as well."""
    instances = [parse_instance(r, f"{where} line {n}: instance") for n, r in enumerate(records, 1)]
    seen: set[str] = set()
    for instance in instances:
        if instance.instance_id in seen:
            raise UsageError(f"{where}: instance {instance.instance_id!r} appears twice")
        seen.add(instance.instance_id)
    return instances


def patched_files(patch: str) -> list[str]:
    """The paths that a git diff touches: old and new names, each once, in order."""
    paths: dict[str, None] = {}
    for old, new in re.findall(r'^diff --git "?a/(.+?)"? "?b/(.+?)"?$', patch, re.MULTILINE):
        paths[old] = paths[new] = None
    return list(paths)


def make_eval_script(
    base_commit: str, test_patch: str, command: str, workdir: str = "/testbed"
) -> str:
    """SWE-bench's evaluation script: test files to base, test_patch, `command` between markers.

    A test_patch that does not apply is said with swebench's own marker, so that it is never
    mistaken for the agent's failure.
    """
    # An empty new file has no "--- /dev/null" line.
    new = set(re.findall(r"^diff --git a/.+ b/(.+)\nnew file mode", test_patch, re.MULTILINE))
    old = " ".join(path for path in patched_files(test_patch) if path not in new)
    lines = ["#!/bin/bash", "set -uxo pipefail", f"cd {workdir}"]
    if old:
        lines.append(f"git checkout {base_commit} {old}")
    if new:
        lines.append(f"rm -rf {' '.join(sorted(new))}")
    lines += [
        f"git apply --whitespace=nowarn - <<'{HEREDOC}' || echo '{TESTS_ERROR}'",
        test_patch.rstrip("\n"),
        HEREDOC,
        f": '{START_TEST_OUTPUT}'",
        command,
        f": '{END_TEST_OUTPUT}'",
    ]
    return "\n".join(lines) + "\n"


def _tests(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return None
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = tuple(value)
        if all(isinstance(item, str) and item for item in items):
            return items
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
