"""Instances are checked: one line names the instance and the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from environments.protocols import UsageError
from environments.swebench.instance import (
    make_eval_script,
    parse_instance,
    parse_instances,
    patched_files,
)
from environments.swebench.mini.dataset import MiniSource

FIELDS = (
    *("repo", "base_commit", "problem_statement", "patch", "test_patch", "FAIL_TO_PASS"),
    *("PASS_TO_PASS", "version", "image", "eval_script", "log_parser", "eval_type"),
)


INSTANCE = MiniSource().instances("eval")[0]


def record() -> dict[str, Any]:
    return INSTANCE.record()


def test_a_record_survives_the_round_trip() -> None:
    assert parse_instance(record()).record() == record()


def test_published_data_sets_write_test_lists_as_json_text() -> None:
    changed = record()
    changed["FAIL_TO_PASS"] = json.dumps(changed["FAIL_TO_PASS"])
    assert parse_instance(changed) == parse_instance(record())


@pytest.mark.parametrize("key", FIELDS)
def test_a_missing_field_is_one_line_with_instance_and_field(key: str) -> None:
    broken = record()
    del broken[key]
    with pytest.raises(UsageError) as error:
        parse_instance(broken)
    assert str(error.value) == f"instance {broken['instance_id']!r}: field {key!r} is missing"


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("repo", 3, "must be non-empty text, not 3"),
        ("problem_statement", " ", "must be non-empty text, not ' '"),
        ("base_commit", "main", "must be 40 hex digits, not 'main'"),
        ("patch", "fix it", "is not a git diff"),
        ("FAIL_TO_PASS", "test_a", "must be a list of test names, not 'test_a'"),
        ("FAIL_TO_PASS", [], "names no test"),
        ("PASS_TO_PASS", [1], "must be a list of test names, not [1]"),
        ("eval_type", "any", "must be one of"),
        ("eval_script", "pytest", "lacks the marker"),
        ("files", {"a": b"bytes"}, "must map paths to text"),
    ],
)
def test_a_malformed_field_is_named(key: str, value: Any, problem: str) -> None:
    broken = record() | {key: value}
    with pytest.raises(UsageError, match=f"field '{key}' ") as error:
        parse_instance(broken)
    assert problem in str(error.value)
    assert broken["instance_id"] in str(error.value)
    assert "\n" not in str(error.value)


def test_a_test_cannot_be_in_both_lists() -> None:
    broken = record()
    broken["PASS_TO_PASS"] = [broken["FAIL_TO_PASS"][0]]
    with pytest.raises(UsageError, match="repeats"):
        parse_instance(broken)


def test_instance_ids_are_unique_and_lines_are_numbered() -> None:
    with pytest.raises(UsageError, match="appears twice"):
        parse_instances([record(), record()], "data.jsonl")
    with pytest.raises(UsageError, match=r"data\.jsonl line 2: instance: field 'instance_id'"):
        parse_instances([record(), {}], "data.jsonl")


def test_patched_files_reads_old_and_new_names() -> None:
    patch = 'diff --git a/x.py b/y.py\nrename from x.py\ndiff --git "a/s t" "b/s t"\n'
    assert patched_files(patch) == ["x.py", "y.py", "s t"]


def test_the_eval_script_resets_old_test_files_and_removes_new_ones() -> None:
    patch = (
        "diff --git a/t/old.py b/t/old.py\n--- a/t/old.py\n+++ b/t/old.py\n"
        "diff --git a/t/new.py b/t/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/t/new.py\n"
    )
    script = make_eval_script("0" * 40, patch, "run-tests")
    assert f"git checkout {'0' * 40} t/old.py\n" in script
    assert "rm -rf t/new.py\n" in script


def test_swebench_accepts_every_bundled_instance() -> None:
    from swebench.harness.log_parsers import PARSER_REGISTRY
    from swebench.harness.utils import make_test_spec

    source = MiniSource()
    for split in source.splits:
        for instance in source.instances(split):
            spec = make_test_spec(instance.record())
            assert spec.log_parser in PARSER_REGISTRY
            assert "SWEBENCH_TEST_EXIT_CODE=$?" in spec.eval_script
