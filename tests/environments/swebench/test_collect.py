"""The agent's diff: whole, without steering files, and whatever the agent did to its repository."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from environments.protocols import ExecResult, InfrastructureError, Sandbox, Submission
from environments.swebench.environment import MAX_PATCH_BYTES


def test_the_diff_holds_new_binary_and_undecodable_files(bench) -> None:
    task = bench.task()

    async def work(sandbox: Sandbox) -> tuple[Submission, bytes]:
        submission = await bench.solve(
            task,
            sandbox,
            [
                r"printf 'caf\351 \n' > latin.txt; printf 'a\0b' > zero.bin; echo 1 > 'a b.txt'",
                "echo x > conftest.py; mkdir -p tests/more; echo x > tests/more/test_x.py",
                "git add -A; git -c user.name=a -c user.email=b commit -qm mine; echo 2 > two.txt",
            ],
        )
        await bench.environment.prepare(task, sandbox)
        patch = submission.patch.encode("utf-8", "surrogateescape")
        await sandbox.put({"p.diff": patch}, base="/tmp")
        await sandbox.exec("rm -rf *; git checkout -q .", timeout_s=20)
        result = await sandbox.exec("git apply /tmp/p.diff", timeout_s=20)
        assert result.exit_code == 0, result.output
        return submission, await sandbox.get("latin.txt")

    submission, latin = bench.in_sandbox(task, work)
    assert latin == b"caf\xe9 \n"
    for path in ("latin.txt", "zero.bin", "a b.txt", "two.txt"):
        assert f"b/{path}" in submission.patch
    assert "conftest.py" not in submission.patch
    assert "test_x.py" not in submission.patch


DAMAGES = (
    *("rm -rf .git", "echo x > .git/index", "touch .git/index.lock", "chmod 000 .git"),
    *("rm -rf .git; echo x > .git", "rm -rf .git; mkdir -p .git/a; chmod 000 .git/a .git"),
    *("chmod 000 .git; chmod 555 .", "chmod 000 tests/*.py"),
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_git_folder_loses_no_work(bench, damage: str) -> None:
    task = bench.task()
    commands = [*bench.environment.oracle_commands(task), damage]
    submission = bench.in_sandbox(task, lambda s: bench.solve(task, s, commands))
    assert bench.verdicts(task, {"": submission.patch})[""].reward == 1.0


class Robbed:
    """A sandbox in which the agent's background process removes a file at the worst moment."""

    def __init__(self, sandbox: Sandbox, before: str, command: str) -> None:
        self._sandbox, self._before, self._command = sandbox, before, command

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def _rob(self, at: str) -> None:
        if at == self._before:
            await self._sandbox.exec(self._command, timeout_s=20)

    async def put(self, files: Any, *, base: str | None = None) -> None:
        await self._rob("put")
        await self._sandbox.put(files, base=base)

    async def get(self, path: str) -> bytes:
        await self._rob("get")
        return await self._sandbox.get(path)


@pytest.mark.parametrize(
    ("change", "before", "robbery"),
    [
        ("seq 50000 > big.txt", "get", "rm /tmp/.submission.diff"),
        ("rm -rf .git", "put", "echo x > .git; chmod 555 ."),
    ],
)
def test_a_diff_that_is_taken_away_is_an_empty_submission(
    bench, change: str, before: str, robbery: str
) -> None:
    task = bench.task()

    async def work(sandbox: Sandbox) -> Submission:
        await sandbox.exec(change, timeout_s=20)
        robbed: Any = Robbed(sandbox, before, robbery)
        return await bench.environment.collect(task, robbed)

    assert bench.in_sandbox(task, work).patch == ""


def test_an_oversized_diff_is_an_empty_submission(bench) -> None:
    task = bench.task()
    command = f"head -c {MAX_PATCH_BYTES + 1} /dev/zero | tr '\\0' 'x' > big.txt"
    submission = bench.in_sandbox(task, lambda s: bench.solve(task, s, [command]))
    assert submission.patch == ""


class Ended:
    """A sandbox that the agent's own doing has ended, or whose disk it has filled."""

    def __init__(self, result: ExecResult) -> None:
        self._result = result

    async def exec(self, command: str, **unused: Any) -> ExecResult:
        return self._result

    async def put(self, files: Any, *, base: str | None = None) -> None:
        kind = "disk" if self._result.exit_code is not None else "exec_transport"
        raise InfrastructureError(kind, "nothing can be put there")


@pytest.mark.parametrize(
    "result",
    [
        ExecResult("[sandbox ended: out of memory]", None, 0.0, out_of_memory=True),
        ExecResult("[sandbox shell killed]", None, 0.0),
        ExecResult("No space left on device", 1, 0.1),
    ],
)
def test_what_an_agent_did_to_its_own_sandbox_is_no_infrastructure_failure(
    bench, result: ExecResult
) -> None:
    sandbox: Any = Ended(result)
    submission = asyncio.run(bench.environment.collect(bench.task(), sandbox))
    assert submission.patch == ""
