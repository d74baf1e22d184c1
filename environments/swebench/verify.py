"""Judges a diff in a fresh sandbox: base state, diff, hidden tests, swebench's report.

What is the agent's fault scores 0 (a diff that does not apply, code that hangs or kills its shell,
too much memory); what is not raises InfrastructureError and is never a reward. A host that stalls
and code that sleeps look the same, so a failure that took long and little CPU is judged once more.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Collection, Sequence
from typing import Any

from environments.protocols import (
    ExecResult,
    InfrastructureError,
    Sandbox,
    SandboxProvider,
    Verdict,
)
from environments.swebench import grading
from environments.swebench.decoy import Decoy, make_decoy, with_decoy
from environments.swebench.instance import APPLY_PATCH_FAIL, Instance, patched_files
from environments.swebench.judge import DECOY_UNSEEN, NO_RESULTS, judge, tests_blocked, zero
from environments.swebench.source import TOOLS_DIR, TaskSource
from environments.swebench.steering import (
    SETTINGS_FILES,
    apply_command,
    is_steering,
    needs_restoring,
    runner_settings,
    steering_in,
    steering_kind,
)

log = logging.getLogger(__name__)

_FOLDER = "/tmp/.verify"  # of the verifier's own sandbox, which no agent has touched
# Read whole and removed before it runs: code under test could otherwise edit the lines still to
# come, or read the hidden tests in it. As eval's argument, because the kernel takes no program
# argument above 128 KiB. FORGET_TESTS tells mini's runner to remove the tests it has read.
_JUDGE = (
    f"FORGET_TESTS=1 bash -c 'script=$(cat {_FOLDER}/eval.sh); rm -rf {_FOLDER}; "
    'eval "$script"\' 2>&1'
)
_APPLIED = ">>>>> Applied Patch"  # swebench's marker
_MAX_LOG_BYTES = 8 << 20
_STEP_TIMEOUT_S = 60.0
_LONG_S = 20.0  # the wall limit of mini's runner, which ends below the verifier's own
_TESTS_END: dict[tuple[str, str, float], bool] = {}
_DECOY_WORKS: dict[tuple[str, str, str], bool] = {}  # by instance, base commit and image
_STALLED_CPU_SHARE = 0.25  # of the wall time; sound tests on a crowded core get more


async def prepare(source: TaskSource, instance: Instance, sandbox: Sandbox) -> None:
    """Put the repository at base_commit into the workdir, and the data set's tools beside it."""
    files = {f"{TOOLS_DIR}/{name}": content for name, content in source.tools(instance).items()}
    repository = source.repository(instance)
    if repository is not None:
        files["@repo.tar"] = repository
    if files:
        await sandbox.put(files)
    await source.started(instance, sandbox)


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
    left_out: Sequence[str] = (),
) -> Verdict:
    """Reward 1.0 or 0.0, with a report: {"resolved", "patch_applied", "reason", counts}.

    "integrity" lists what the agent tried on the verifier, where that was seen, solved or not: by
    the patch, by the files of its work that are `left_out` of it, by its code during the tests.
    "failure" says that the agent's code ran out of time or memory.
    """
    judgement = (source, instance, patch, provider, left_out)
    known = _DECOY_WORKS.get(_image_key(instance), True)
    decoy = make_decoy(instance) if source.decoy and known else None
    verdict, result = await _judge_once(*judgement, decoy, timeout_s=timeout_s)
    if not verdict.reward and _stalled(result):
        wait = f"{result.duration_s:.0f} s with {result.cpu_s:.1f} s of CPU"
        verdict, result = await _judge_once(*judgement, decoy, timeout_s=timeout_s)
        verdict = Verdict(verdict.reward, {**verdict.report, "repeated_after": wait})
    doubtful = decoy is not None and not source.solved_run_is_clean and _may_be_the_decoys(verdict)
    if doubtful and not await _decoy_works(source, instance, provider, timeout_s):
        verdict, _ = await _judge_once(*judgement, None, timeout_s=timeout_s)
    if verdict.report.get("failure") == "agent_timeout":
        await _check_that_tests_end(source, instance, provider, timeout_s)
    return verdict


def _image_key(instance: Instance) -> tuple[str, str, str]:
    return instance.instance_id, instance.base_commit, instance.image


def _may_be_the_decoys(verdict: Verdict) -> bool:
    """Whether a zero may come of a decoy that its runner does not find, or that disturbs the others
    (one that stops at the first failure, tests that look at their own file)."""
    unread = verdict.report.get("reason") in (NO_RESULTS, DECOY_UNSEEN)
    return not verdict.reward and (unread or verdict.report.get("pass_to_pass_failure", 0) > 0)


async def _decoy_works(
    source: TaskSource, instance: Instance, provider: SandboxProvider, timeout_s: float
) -> bool:
    """Whether the gold patch passes beside a decoy that fails. Found out once per instance."""
    key = _image_key(instance)
    if key not in _DECOY_WORKS:
        gold, _ = await _judge_once(
            source, instance, instance.patch, provider, (), make_decoy(instance),
            timeout_s=timeout_s,
        )  # fmt: skip
        _DECOY_WORKS[key] = gold.reward == 1.0
        if not _DECOY_WORKS[key]:
            log.warning(
                f"{instance.instance_id}: judged without a decoy, which the gold fails beside"
            )
    return _DECOY_WORKS[key]


async def _check_that_tests_end(
    source: TaskSource, instance: Instance, provider: SandboxProvider, timeout_s: float
) -> None:
    """Raise InfrastructureError where the tests run past the limit with the gold patch as well: no
    agent is at fault then. Found out once per instance."""
    key = (instance.instance_id, instance.base_commit, timeout_s)
    if key not in _TESTS_END:
        gold, _ = await _judge_once(
            source, instance, instance.patch, provider, (), None, timeout_s=timeout_s
        )
        _TESTS_END[key] = gold.report.get("failure") != "agent_timeout"
    if not _TESTS_END[key]:
        raise InfrastructureError(
            "verifier_timeout",
            f"{instance.instance_id}: field eval_script: its tests run past "
            f"env.verify_timeout_s={timeout_s:g} with the gold patch as well",
        )


def _stalled(result: ExecResult) -> bool:
    """Whether a limit on wall time, not on CPU time, may have ended the tests."""
    long = result.timed_out or result.duration_s >= _LONG_S
    return long and result.cpu_s < _STALLED_CPU_SHARE * result.duration_s


async def _judge_once(
    source: TaskSource,
    instance: Instance,
    patch: str,
    provider: SandboxProvider,
    left_out: Sequence[str],
    decoy: Decoy | None,
    *,
    timeout_s: float,
) -> tuple[Verdict, ExecResult]:
    allowed = gold_files(instance)
    result, ignored = await _run_tests(source, instance, patch, provider, decoy, timeout_s)
    report: dict[str, Any] = {"resolved": False, "patch_applied": _APPLIED in result.output}
    ignored = [*left_out, *(path for path in ignored if path not in left_out)]
    if ignored:
        report["ignored_files"] = ignored
        kinds = {steering_kind(path, allowed) for path in ignored}
        report["integrity"] = sorted(kind for kind in kinds if kind)
    if patch.strip() and tests_blocked(result):
        # Without the patch this must raise: then the data set is at fault, not the agent.
        bare, _ = await _run_tests(source, instance, "", provider, decoy, timeout_s)
        judge(instance, "", bare, {}, decoy, must_be_clean=False)
        return zero(report, "the patch keeps the hidden tests out", "test_files"), result
    clean = source.solved_run_is_clean
    return judge(instance, patch, result, report, decoy, must_be_clean=clean), result


async def _run_tests(
    source: TaskSource,
    instance: Instance,
    patch: str,
    provider: SandboxProvider,
    decoy: Decoy | None,
    timeout_s: float,
) -> tuple[ExecResult, list[str]]:
    """What the evaluation script left in a fresh sandbox with the patch; the files left out."""
    allowed = gold_files(instance)
    apply = apply_command(f"{_FOLDER}/patch.diff", allowed) if patch.strip() else "true"
    script = grading.full_eval_script(instance) + grading.exit_with_tests()
    if decoy is not None:
        script = with_decoy(script, decoy)
    files = {"patch.diff": patch.encode("utf-8", "surrogateescape"), "eval.sh": script.encode()}
    ignored = steering_in(patch, allowed)
    sandbox = await provider.start(source.sandbox_spec(instance))
    try:
        await prepare(source, instance, sandbox)
        await sandbox.put(files, base=_FOLDER)
        if needs_restoring(patch):
            start = source.start_commit(instance)
            ignored += await _apply_and_restore(sandbox, start, apply, allowed)
            apply = f"test -e {_FOLDER}/applied"
        command = (
            f"{apply} || {{ echo '{APPLY_PATCH_FAIL}'; exit 0; }}; echo '{_APPLIED}'; {_JUDGE}"
        )
        result = await sandbox.exec(command, timeout_s=timeout_s, max_output_bytes=_MAX_LOG_BYTES)
    finally:
        await sandbox.stop()
    return result, ignored


async def _apply_and_restore(
    sandbox: Sandbox, start: str, apply: str, allowed: Collection[str]
) -> list[str]:
    """Apply the diff, and put back settings files whose test-runner section it changed and steering
    files that it removed by moving them away.

    Returns the files put back. Leaves a mark where the diff applied.
    """
    paths = [path for path in SETTINGS_FILES if path not in allowed]
    before = [await _read(sandbox, f"cat {path}") for path in paths]
    await sandbox.exec(f"{apply} && touch {_FOLDER}/applied", timeout_s=_STEP_TIMEOUT_S)
    after = [await _read(sandbox, f"cat {path}") for path in paths]
    changed = [
        path
        for path, old, new in zip(paths, before, after, strict=True)
        if runner_settings(path, old) != runner_settings(path, new)
    ]
    gone = await _read(sandbox, f"git diff --name-only --no-renames --diff-filter=D -z {start}")
    changed += [path for path in gone.split("\0") if path and is_steering(path, allowed)]
    for path in map(shlex.quote, changed):
        restore = f"rm -rf {path}; git checkout {start} -- {path}"
        await sandbox.exec(restore, timeout_s=_STEP_TIMEOUT_S)
    return changed


async def _read(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.exec(
        f"{command} 2>/dev/null", timeout_s=_STEP_TIMEOUT_S, max_output_bytes=1 << 20
    )
    return result.output
