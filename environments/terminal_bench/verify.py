"""Judges the end state of an agent's own machine by the task's tests.

The machine is the agent's: whatever it left running is ended, whatever it left where tests and
rewards go is removed, and only then do the tests come in. What only an agent, or code of its that
the tests ran, can have done to the judgement scores 0 and is listed under `integrity`; a judgement
that nobody can read is InfrastructureError and never a reward (docs/terminal_bench.md has both
lists).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from environments.protocols import ExecResult, InfrastructureError, Sandbox, Verdict
from environments.terminal_bench.folder import TaskFolder
from environments.terminal_bench.rewards import MAX_BYTES, parse_reward

TESTS, LOGS, SOLUTION = "/tests", "/logs/verifier", "/solution"
SCRATCH_PATHS = (TESTS, LOGS, "/logs/agent", SOLUTION)
_STEP_S = 60.0
_OUTPUT_BYTES = 65536
_REPORTED_CHARACTERS = 2000
# Names first, for the record. Modes next: an agent may have locked what it left. Both folders are
# mount points, so nothing can stand in their place. Builtins alone decide whether all is gone.
_CLEAR = f"""\
shopt -s nullglob dotglob
printf '%s\\n' {TESTS}/* {LOGS}/*
chmod -R u+rwx {TESTS} {LOGS} 2>/dev/null
find {TESTS} {LOGS} -mindepth 1 -delete 2>/dev/null
left=({TESTS}/* {LOGS}/*)
(( ${{#left[@]}} == 0 ))"""
_KINDS = f"""\
for file in {LOGS}/reward.json {LOGS}/reward.txt; do
  if [[ -L $file ]]; then echo link; elif [[ ! -e $file ]]; then echo none
  elif [[ -f $file ]]; then echo file; else echo other; fi
done"""


class _Zero(Exception):
    """The agent's own doing: reward 0 for this reason. `integrity` is the kind of what it did to
    its judgement, `failure` that of its own failure, where it was one."""

    def __init__(
        self, reason: str, *, integrity: str | None = None, failure: str | None = None
    ) -> None:
        super().__init__(reason)
        self.integrity = integrity
        self.failure = failure


async def verify(
    task: TaskFolder,
    sandbox: Sandbox,
    *,
    keep_processes: bool,
    hosts: Sequence[str] | None = None,
    hand_over: bool = False,
) -> Verdict:
    """Reward as the tests wrote it, with a report: {"reason", "exit_code", "output", "metrics"}.

    "integrity" lists what the agent tried on its judgement, where that was seen, by kind, and
    "planted" the names found; "failure" says that it ran out of memory. May be run again on the
    same sandbox. `hosts` are those that the tests may reach, where the agent's were others;
    `hand_over` says that the tests run as another user.
    """
    report: dict[str, Any] = {"reason": "judged"}
    try:
        await _ready(sandbox, keep_processes=keep_processes)
        if hosts is not None:
            await sandbox.allow_hosts(hosts)
        # While the agent's processes are kept, one may write faster than anybody clears: where the
        # folders change hands, only what is left in them after that counts.
        await _clear(sandbox, report, decides=not hand_over)
        if hand_over:
            await _hand_over(sandbox, report, keep_processes=keep_processes)
        reward = await _judge(task, sandbox, report)
    except _Zero as zero:
        report["reason"] = str(zero)
        if zero.integrity is not None:
            report["integrity"] = sorted({*report.get("integrity", ()), zero.integrity})
        if zero.failure is not None:
            report["failure"] = zero.failure
        return Verdict(0.0, report)
    return Verdict(reward, report)


async def _judge(task: TaskFolder, sandbox: Sandbox, report: dict[str, Any]) -> float:
    await _put_tests(task, sandbox)
    settings = task.settings
    # Read whole and in this very process, whose end is then that of the tests: what they start can
    # neither edit lines still to come nor kill them unseen. $0 is what it is when run as a file.
    exports = "".join(f"export {k}={shlex.quote(v)}; " for k, v in settings.verifier_env.items())
    command = f'{exports}exec "$BASH" -c \'eval "$(<{TESTS}/test.sh)"\' {TESTS}/test.sh'
    result = await sandbox.exec(
        command, timeout_s=settings.verifier_timeout_s, max_output_bytes=_OUTPUT_BYTES
    )
    report["exit_code"] = result.exit_code
    report["output"] = result.output[-_REPORTED_CHARACTERS:]
    if result.timed_out:
        limit = f"verifier.timeout_sec = {settings.verifier_timeout_s:g}"
        raise InfrastructureError(
            "verifier_timeout", f"{task.name}: tests/test.sh runs longer than {limit}"
        )
    if result.killed or result.exit_code is None:
        if result.out_of_memory:
            raise _Zero("out of memory during the tests", failure="agent_out_of_memory")
        raise _Zero("the tests were killed", integrity="killed_tests")
    await sandbox.end_processes()  # nothing may write the reward any more
    if await _changed_tests(task, sandbox):
        raise _Zero("the tests were changed while they ran", integrity="changed_tests")
    return await _reward(task, sandbox, result, report)


async def _ready(sandbox: Sandbox, *, keep_processes: bool) -> None:
    """The agent's processes ended, and a command can run. No command at all may start before: an
    agent may have used up the limit on processes."""
    first = await sandbox.exec(":", timeout_s=_STEP_S)
    if first.exit_code is not None and not keep_processes:
        await sandbox.end_processes()
        first = await sandbox.exec(":", timeout_s=_STEP_S)
    _alive(first)


def _alive(result: ExecResult) -> None:
    if result.exit_code == 0:
        return
    if result.out_of_memory:
        raise _Zero("the agent's machine ran out of memory", failure="agent_out_of_memory")
    raise _Zero("the agent left its machine unusable")


async def _clear(sandbox: Sandbox, report: dict[str, Any], *, decides: bool) -> None:
    result = await sandbox.exec(_CLEAR, timeout_s=_STEP_S, max_output_bytes=4096)
    found = [line[:80] for line in result.output.split("\n") if line.startswith((TESTS, LOGS))]
    if found:
        tests = {"planted_tests" for name in found if name.startswith(TESTS)}
        rewards = {"planted_reward" for name in found if name.startswith(LOGS)}
        report["planted"] = [*dict.fromkeys([*report.get("planted", ()), *found])][:5]
        report["integrity"] = sorted({*report.get("integrity", ()), *tests, *rewards})
    if decides and result.exit_code != 0:
        raise _Zero(f"{TESTS} and {LOGS} cannot be cleared", integrity="locked_folders")


async def _hand_over(sandbox: Sandbox, report: dict[str, Any], *, keep_processes: bool) -> None:
    """To the verifier's user. What clears the folders runs as the agent, who owns what is in them
    and may have made the programs for it; so nothing of that may run on, and they are looked at
    again once they are the verifier's alone."""
    if not keep_processes:
        await sandbox.end_processes()
    try:
        await sandbox.hand_over((TESTS, LOGS))
    except OSError as error:  # an agent that is root has put something else in their place
        reason = f"{TESTS} and {LOGS} cannot be handed over: {error.strerror}"
        raise _Zero(reason, integrity="locked_folders") from error
    _alive(await sandbox.exec(":", timeout_s=_STEP_S))
    await _clear(sandbox, report, decides=True)


async def _put_tests(task: TaskFolder, sandbox: Sandbox) -> None:
    await sandbox.put({p: file.content for p, file in task.tests.items()}, base=TESTS)
    programs = [f"{TESTS}/{path}" for path, file in task.tests.items() if file.executable]
    if programs:
        await sandbox.exec(f"chmod 755 {shlex.join(programs)}", timeout_s=_STEP_S)


async def _changed_tests(task: TaskFolder, sandbox: Sandbox) -> bool:
    """Whether a program of the tests is not what was put there; their data may be used up."""
    for path, file in task.tests.items():
        if path.endswith((".sh", ".py")):
            try:
                if await sandbox.get(f"{TESTS}/{path}") != file.content:
                    return True
            except OSError:
                return True
    return False


async def _reward(
    task: TaskFolder, sandbox: Sandbox, result: ExecResult, report: dict[str, Any]
) -> float:
    kinds = await sandbox.exec(_KINDS, timeout_s=_STEP_S)
    _alive(kinds)
    names = dict(zip(("reward.json", "reward.txt"), kinds.output.split(), strict=True))
    for name, kind in names.items():
        if kind in ("link", "other"):  # both were cleared, and the tests write files
            raise _Zero(f"{name} is not a regular file", integrity="forged_reward")
    files = {n: await _content(sandbox, n) for n, kind in names.items() if kind == "file"}
    reward, metrics = _parse(task, files, result)
    if metrics:
        report["metrics"] = dict(metrics)
    return reward


async def _content(sandbox: Sandbox, name: str) -> bytes:
    try:
        return (await sandbox.get(f"{LOGS}/{name}"))[:MAX_BYTES]
    except OSError as error:
        reason = f"{name} cannot be read: {error.strerror}"
        raise _Zero(reason, integrity="forged_reward") from error


def _parse(
    task: TaskFolder, files: Mapping[str, bytes], result: ExecResult
) -> tuple[float, Mapping[str, float]]:
    try:
        return parse_reward(files.get("reward.json"), files.get("reward.txt"))
    except ValueError as error:
        said = " ".join(result.output[-200:].split())
        raise InfrastructureError(
            "parser",
            f"{task.name}: tests/test.sh ended with {result.exit_code}: {error}; it said: {said!r}",
        ) from error
