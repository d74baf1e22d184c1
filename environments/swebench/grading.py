"""Grades a verifier's log with swebench's own parser and report (imported late: it takes 3 s)."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from typing import Any

from environments.protocols import InfrastructureError
from environments.swebench.instance import END_TEST_OUTPUT, START_TEST_OUTPUT, Instance


def warm_up() -> None:
    """Import what grading needs: about 3 s, once per process."""
    import swebench.harness.grading
    import swebench.harness.utils  # noqa: F401


def full_eval_script(instance: Instance) -> str:
    """The script swebench itself would run: the instance's, recording the tests' exit status."""
    from swebench.harness.utils import make_test_spec

    return make_test_spec(instance.record()).eval_script


def exit_with_tests() -> str:
    """A last line for that script: hands the tests' exit status on, past the log."""
    from swebench.harness.constants import TEST_EXIT_CODE_VAR

    return f'\nexit "${{{TEST_EXIT_CODE_VAR}:-125}}"\n'


def grade(instance: Instance, patch: str, log: str) -> dict[str, Any]:
    """swebench's report on one log: {"resolved", "tests_status", ...}.

    Raises InfrastructureError where the instance names a parser that swebench does not have.
    """
    from swebench.harness.grading import get_eval_report
    from swebench.harness.log_parsers import PARSER_REGISTRY
    from swebench.harness.utils import make_test_spec

    if instance.log_parser not in PARSER_REGISTRY:
        raise InfrastructureError(
            "parser", f"{instance.instance_id}: swebench has no log parser {instance.log_parser!r}"
        )
    prediction = {
        "instance_id": instance.instance_id,
        "model_name_or_path": "agent",
        "model_patch": patch,
    }
    descriptor, path = tempfile.mkstemp(prefix="swebench-log-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(log)
        report = get_eval_report(make_test_spec(instance.record()), prediction, path, True)
    finally:
        os.unlink(path)
    return dict(report[instance.instance_id])


def outcomes(instance: Instance, log: str) -> dict[str, str]:
    """Test -> PASSED, FAILED and so on: what swebench's parser reads between the log's markers."""
    from swebench.harness.log_parsers import PARSER_REGISTRY
    from swebench.harness.utils import make_test_spec

    inside = log.partition(START_TEST_OUTPUT)[2].partition(END_TEST_OUTPUT)[0]
    return PARSER_REGISTRY[instance.log_parser](inside, make_test_spec(instance.record()))


def contradictions(log: str) -> list[str]:
    """Tests that the log reports more than once with different outcomes: a forged result."""
    inside = log.partition(START_TEST_OUTPUT)[2].partition(END_TEST_OUTPUT)[0]
    seen: dict[str, str] = {}
    twice = []
    for line in inside.splitlines():  # swebench's parser, too, ends a line at a carriage return
        words = line.split()
        if (
            len(words) > 1
            and words[0] in ("PASSED", "FAILED", "ERROR")
            and (seen.setdefault(words[1], words[0]) != words[0])
        ):
            twice.append(words[1])
    return twice


def forged_markers(log: str) -> bool:
    """Whether a marker of the evaluation script comes more often than the script prints it."""
    return log.count(START_TEST_OUTPUT) > 1 or log.count(END_TEST_OUTPUT) > 1


def silent(instance: Instance, log: str, exit_code: int | None) -> str:
    """Why an exit status does not fit the log of a solved task; "" where it does."""
    failures = {"FAILED", "ERROR"} & set(outcomes(instance, log).values())
    if exit_code == 0 or failures:
        return ""
    return f"the log reports no failure, but the test command ended with {exit_code}"


def unclean(log: str, exit_code: int | None, listed: int, decoy: str | None = None) -> str:
    """Why this is not a runner in which `listed` tests or more, and all, passed; else "".

    Any line of the log may be the code under test's own, which may have ended the runner before it
    said anything: the test command's exit status is what it cannot write. `decoy` is a test that
    must be the only one to fail.
    """
    if exit_code != (0 if decoy is None else 1):
        return f"the log reports passes, but the test command ended with {exit_code}"
    if decoy is not None and f"\nFAILED {decoy} " not in log:
        return "a test that must fail is not reported as failed"
    inside = log.partition(START_TEST_OUTPUT)[2].partition(END_TEST_OUTPUT)[0]
    said = [line for line in inside.splitlines()[1:] if line.strip() and not line.startswith("+")]
    summary = said[-1] if said else ""
    counts = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", summary)}
    failed = sum(counts.get(word, 0) for word in ("failed", "error", "errors"))
    if counts.get("passed", 0) < listed or failed != (0 if decoy is None else 1):
        return f"the test runner's last line is {summary[:80]!r}, with {listed} tests to pass"
    return ""


def summarise(report: Mapping[str, Any]) -> dict[str, int]:
    """Counts of a report's tests: what goes into the records of a run."""
    status = report.get("tests_status", {})
    return {
        f"{name.lower()}_{outcome}": len(status.get(name, {}).get(outcome, ()))
        for name in ("FAIL_TO_PASS", "PASS_TO_PASS")
        for outcome in ("success", "failure")
    }
