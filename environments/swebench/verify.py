"""Judges a diff in a fresh sandbox: base state, diff, hidden tests, swebench's report.

What is the agent's fault scores 0 (a diff that does not apply, code that hangs or kills its shell,
too much memory); what is not raises InfrastructureError and is never a reward.
"""

from __future__ import annotations

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
from environments.swebench.steering import drop_files, is_mixed, runner_settings, steering_in

_FOLDER = "/tmp/.verify"  # of the verifier's own sandbox, which no agent has touched
_APPLIED = ">>>>> Applied Patch"  # swebench's marker
_APPLY = f"git apply --whitespace=nowarn {_FOLDER}/patch.diff"
_MAX_LOG_BYTES = 8 << 20
_STEP_TIMEOUT_S = 60.0


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
    steering = steering_in(patch, gold_files(instance))
    kept = drop_files(patch, steering)
    sandbox = await provider.start(source.sandbox_spec(instance))
    try:
        await prepare(source, instance, sandbox)
        files = {
            "patch.diff": kept.encode("utf-8", "surrogateescape"),
            "eval.sh": grading.full_eval_script(instance).encode(),
        }
        await sandbox.put(files, base=_FOLDER)
        mixed = [p for p in patched_files(kept) if is_mixed(p) and p not in gold_files(instance)]
        if mixed:
            steering += await _restore_settings(sandbox, instance, mixed)
            command = f"echo '{_APPLIED}'; bash {_FOLDER}/eval.sh 2>&1"
        else:
            apply = _APPLY if kept.strip() else "true"
            command = (
                f"{apply} || {{ echo '{APPLY_PATCH_FAIL}'; exit 0; }}; "
                f"echo '{_APPLIED}'; bash {_FOLDER}/eval.sh 2>&1"
            )
        result = await sandbox.exec(
            command, timeout_s=timeout_s, max_output_bytes=_MAX_LOG_BYTES
        )
    finally:
        await sandbox.stop()
    return _judge(instance, patch, result, steering)


async def _restore_settings(sandbox: Sandbox, instance: Instance, paths: list[str]) -> list[str]:
    """Apply the diff; put files of `paths` back to base whose test-runner section it changed."""
    before = {path: await _read(sandbox, path) for path in paths}
    result = await sandbox.exec(_APPLY, timeout_s=_STEP_TIMEOUT_S)
    if result.exit_code != 0:
        return []
    changed = [
        path
        for path in paths
        if runner_settings(path, before[path]) != runner_settings(path, await _read(sandbox, path))
    ]
    if changed:
        names = " ".join(f"'{path}'" for path in changed if "'" not in path)
        await sandbox.exec(
            f"git checkout {instance.base_commit} -- {names} || rm -f {names}",
            timeout_s=_STEP_TIMEOUT_S,
        )
    return changed


async def _read(sandbox: Sandbox, path: str) -> str:
    result = await sandbox.exec(f"cat '{path}' 2>/dev/null", timeout_s=_STEP_TIMEOUT_S)
    return result.output


def _judge(
    instance: Instance, patch: str, result: ExecResult, steering: list[str]
) -> Verdict:
    log = result.output
    name = instance.instance_id
    report: dict[str, Any] = {"resolved": False, "patch_applied": _APPLIED in log}
    if steering:
        report["ignored_files"] = steering

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
    if END_TEST_OUTPUT not in log.partition(START_TEST_OUTPUT)[2]:
        return zero("the tests ended their own shell")
    forged = grading.contradictions(log)
    if forged:
        return zero(f"the log reports {forged[0]} twice, with different outcomes")
    graded = grading.grade(instance, patch, log)
    report |= grading.summarise(graded)
    report["resolved"] = bool(graded["resolved"])
    if report["resolved"]:
        return Verdict(1.0, report | {"reason": "resolved"})
    return zero("tests fail" if "tests_status" in graded else "no readable test results")
