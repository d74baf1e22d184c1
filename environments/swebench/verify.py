"""Judges a diff in a fresh sandbox: base state, diff, hidden tests, swebench's report.

What is the agent's fault scores 0 (a diff that does not apply, code that hangs or kills its shell,
too much memory); what is not raises InfrastructureError and is never a reward. A host that stalls
and code that sleeps look the same, so a failure that took long and little CPU is judged once more.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from environments.protocols import (
    ExecResult,
    InfrastructureError,
    Sandbox,
    SandboxProvider,
    Verdict,
)
from environments.swebench import grading
from environments.swebench.instance import (
    APPLY_PATCH_FAIL,
    END_TEST_OUTPUT,
    START_TEST_OUTPUT,
    TESTS_ERROR,
    Instance,
    patched_files,
)
from environments.swebench.source import TOOLS_DIR, TaskSource
from environments.swebench.steering import (
    SETTINGS_FILES,
    apply_command,
    may_change_settings,
    runner_settings,
    steering_in,
)

_FOLDER = "/tmp/.verify"  # of the verifier's own sandbox, which no agent has touched
_APPLIED = ">>>>> Applied Patch"  # swebench's marker
_MAX_LOG_BYTES = 8 << 20
_STEP_TIMEOUT_S = 60.0
_LONG_S = 20.0  # the wall limit of mini's runner, which ends below the verifier's own
_STALLED_CPU_SHARE = 0.25  # of the wall time; sound tests on a crowded core get more


async def prepare(source: TaskSource, instance: Instance, sandbox: Sandbox) -> None:
    """Put the repository at base_commit into the workdir, and the data set's tools beside it."""
    repository = source.repository(instance)
    if repository is not None:
        await sandbox.put({"@repo.tar": repository})
    tools = source.tools(instance)
    if tools:
        await sandbox.put(tools, base=TOOLS_DIR)


def gold_files(instance: Instance) -> set[str]:
    """Files of the gold patch: an agent may change these whatever they are called."""
    return set(patched_files(instance.patch)) - set(patched_files(instance.test_patch))


async def verify(
    source: TaskSource,
    instance: Instance,
    patch: str,
    provider: SandboxProvider,
    *,
    timeout_s: float,
) -> Verdict:
    """Reward 1.0 or 0.0, with a report: {"resolved", "patch_applied", "reason", counts}."""
    judgement = (source, instance, patch, provider)
    verdict, result = await _judge_once(*judgement, timeout_s=timeout_s)
    if verdict.reward or not _stalled(result):
        return verdict
    wait = f"{result.duration_s:.0f} s with {result.cpu_s:.1f} s of CPU"
    verdict, _ = await _judge_once(*judgement, timeout_s=timeout_s)
    return Verdict(verdict.reward, {**verdict.report, "repeated_after": wait})


def _stalled(result: ExecResult) -> bool:
    """Whether a limit on wall time, not on CPU time, may have ended the tests."""
    long = result.timed_out or result.duration_s >= _LONG_S
    return long and result.cpu_s < _STALLED_CPU_SHARE * result.duration_s


async def _judge_once(
    source: TaskSource,
    instance: Instance,
    patch: str,
    provider: SandboxProvider,
    *,
    timeout_s: float,
) -> tuple[Verdict, ExecResult]:
    allowed = gold_files(instance)
    apply = apply_command(f"{_FOLDER}/patch.diff", allowed) if patch.strip() else "true"
    # Read whole before it runs: code under test could otherwise edit the lines still to come. As
    # eval's argument, because the kernel takes no program argument above 128 KiB.
    judge = f"bash -c 'eval \"$(cat {_FOLDER}/eval.sh)\"' 2>&1"
    clean = source.solved_run_is_clean
    script = grading.full_eval_script(instance) + (grading.exit_with_tests() if clean else "")
    files = {"patch.diff": patch.encode("utf-8", "surrogateescape"), "eval.sh": script.encode()}
    ignored = steering_in(patch, allowed)
    sandbox = await provider.start(source.sandbox_spec(instance))
    try:
        await prepare(source, instance, sandbox)
        await sandbox.put(files, base=_FOLDER)
        if may_change_settings(patch):
            ignored += await _apply_and_restore_settings(sandbox, instance, apply, allowed)
            apply = f"test -e {_FOLDER}/applied"
        command = f"{apply} || {{ echo '{APPLY_PATCH_FAIL}'; exit 0; }}; echo '{_APPLIED}'; {judge}"
        result = await sandbox.exec(command, timeout_s=timeout_s, max_output_bytes=_MAX_LOG_BYTES)
    finally:
        await sandbox.stop()
    return _judge(instance, patch, result, ignored, must_be_clean=clean), result


async def _apply_and_restore_settings(
    sandbox: Sandbox, instance: Instance, apply: str, allowed: Collection[str]
) -> list[str]:
    """Apply the diff, and put settings files whose test-runner section it changed back to base.

    Returns the files put back. Leaves a mark where the diff applied.
    """
    paths = [path for path in SETTINGS_FILES if path not in allowed]
    before = [await _read(sandbox, path) for path in paths]
    await sandbox.exec(f"{apply} && touch {_FOLDER}/applied", timeout_s=_STEP_TIMEOUT_S)
    after = [await _read(sandbox, path) for path in paths]
    changed = [
        path
        for path, old, new in zip(paths, before, after, strict=True)
        if runner_settings(path, old) != runner_settings(path, new)
    ]
    for path in changed:
        restore = f"rm -rf {path}; git checkout {instance.base_commit} -- {path}"
        await sandbox.exec(restore, timeout_s=_STEP_TIMEOUT_S)
    return changed


async def _read(sandbox: Sandbox, path: str) -> str:
    command = f"cat {path} 2>/dev/null"
    result = await sandbox.exec(command, timeout_s=_STEP_TIMEOUT_S, max_output_bytes=1 << 20)
    return result.output


def _judge(
    instance: Instance,
    patch: str,
    result: ExecResult,
    ignored: list[str],
    *,
    must_be_clean: bool,
) -> Verdict:
    log = result.output
    name = instance.instance_id
    report: dict[str, Any] = {"resolved": False, "patch_applied": _APPLIED in log}
    if ignored:
        report["ignored_files"] = ignored

    def zero(reason: str) -> Verdict:
        return Verdict(0.0, report | {"reason": reason})

    started = START_TEST_OUTPUT in log
    if APPLY_PATCH_FAIL in log and not report["patch_applied"]:
        return zero("the patch does not apply")
    if not started:
        kind = "verifier_timeout" if result.timed_out else "exec_transport"
        kind = "out_of_memory" if result.out_of_memory else kind
        tail = " ".join(log[-200:].split())
        raise InfrastructureError(kind, f"{name}: the verifier never reached its tests: {tail}")
    if TESTS_ERROR in log.partition(START_TEST_OUTPUT)[0]:
        raise InfrastructureError("parser", f"{name}: test_patch does not apply at base_commit")
    if result.timed_out:
        return zero(f"the tests ran past {result.duration_s:.0f} s")
    if result.out_of_memory:
        return zero("the tests ran out of memory")
    # A marker in the log is no proof: code under test may have written it before it killed bash.
    ended = result.exit_code is not None and result.exit_code < 128
    if not ended or END_TEST_OUTPUT not in log.partition(START_TEST_OUTPUT)[2]:
        return zero("the tests ended their own runner or shell")
    forged = grading.contradictions(log)
    if forged:
        return zero(f"the log reports {forged[0]} twice, with different outcomes")
    graded = grading.grade(instance, patch, log)
    report |= grading.summarise(graded)
    listed = len(instance.FAIL_TO_PASS) + len(instance.PASS_TO_PASS)
    if must_be_clean and graded["resolved"]:
        unclean = grading.unclean(log, result.exit_code, listed)
        if unclean:
            return zero(unclean)
    report["resolved"] = bool(graded["resolved"])
    if report["resolved"]:
        return Verdict(1.0, report | {"reason": "resolved"})
    return zero("tests fail" if "tests_status" in graded else "no readable test results")
