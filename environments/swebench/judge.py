"""What a verifier's log means: a reward, or a failure that is nobody's reward.

Any line of the log may be the code under test's own. What decides is what that code cannot write
(the exit status, limits, a decoy's failure), and then swebench's report.
"""

from __future__ import annotations

from typing import Any

from environments.protocols import ExecResult, InfrastructureError, Verdict
from environments.swebench import grading
from environments.swebench.decoy import Decoy
from environments.swebench.instance import (
    APPLY_PATCH_FAIL,
    END_TEST_OUTPUT,
    START_TEST_OUTPUT,
    TESTS_ERROR,
    Instance,
    patched_files,
)

NO_RESULTS = "no readable test results"
DECOY_UNSEEN = "a test that must fail is not reported as failed"


def _leaves(path: str) -> bool:
    return path.startswith("/") or ".." in path.split("/")


def tests_blocked(result: ExecResult) -> bool:
    before, started, _ = result.output.partition(START_TEST_OUTPUT)
    return bool(started) and TESTS_ERROR in before


def zero(
    report: dict[str, Any], reason: str, integrity: str | None = None, failure: str | None = None
) -> Verdict:
    """Reward 0 for the agent's own doing."""
    report = report | {"reason": reason}
    if integrity is not None:
        report["integrity"] = sorted({*report.get("integrity", ()), integrity})
    if failure is not None:
        report["failure"] = failure
    return Verdict(0.0, report)


def judge(
    instance: Instance,
    patch: str,
    result: ExecResult,
    report: dict[str, Any],
    decoy: Decoy | None,
    *,
    must_be_clean: bool,
) -> Verdict:
    log = result.output
    name = instance.instance_id
    if APPLY_PATCH_FAIL in log and not report.get("patch_applied"):
        outside = any(_leaves(path) for path in patched_files(patch))
        return zero(report, "the patch does not apply", "outside" if outside else None)
    if START_TEST_OUTPUT not in log:
        kind = "verifier_timeout" if result.timed_out else "exec_transport"
        kind = "out_of_memory" if result.out_of_memory else kind
        tail = " ".join(log[-200:].split())
        raise InfrastructureError(kind, f"{name}: the verifier never reached its tests: {tail}")
    if tests_blocked(result):
        raise InfrastructureError("parser", f"{name}: test_patch does not apply at base_commit")
    if result.timed_out:
        reason = f"the tests ran past {result.duration_s:.0f} s"
        return zero(report, reason, failure="agent_timeout")
    if result.out_of_memory:
        return zero(report, "the tests ran out of memory", failure="agent_out_of_memory")
    # A marker in the log is no proof: code under test may have written it before it killed bash.
    ended = result.exit_code is not None and result.exit_code < 128
    if not ended or END_TEST_OUTPUT not in log.partition(START_TEST_OUTPUT)[2]:
        return zero(report, "the tests ended their own runner or shell", "killed_runner")
    if grading.forged_markers(log):
        return zero(report, "the log has more markers than its script", "forged_results")
    forged = grading.contradictions(log)
    if forged:
        reason = f"the log reports {forged[0]} twice, with different outcomes"
        return zero(report, reason, "forged_results")
    graded = grading.grade(instance, patch, log)
    report = report | grading.summarise(graded)
    if graded["resolved"]:
        listed = len(instance.FAIL_TO_PASS) + len(instance.PASS_TO_PASS)
        if must_be_clean:
            test_id = decoy.test_id if decoy is not None else None
            forged_by = grading.unclean(log, result.exit_code, listed, test_id)
        elif decoy is not None:
            failed = grading.outcomes(instance, log).get(decoy.test_id) in ("FAILED", "ERROR")
            forged_by = "" if failed else DECOY_UNSEEN
        else:
            forged_by = grading.silent(instance, log, result.exit_code)
        if forged_by:
            return zero(report, forged_by, "forged_results")
        return Verdict(1.0, report | {"resolved": True, "reason": "resolved"})
    return zero(report, "tests fail" if "tests_status" in graded else NO_RESULTS)
