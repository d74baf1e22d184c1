"""Nothing that git can find in an agent's sandbox was made after base_commit."""

from __future__ import annotations

import re

import pytest

from environments.protocols import InfrastructureError, Sandbox
from environments.swebench.history import strip_history
from environments.swebench.instance import Instance

SECRET = "the fix of tomorrow"
COMMIT = f"git -c user.name=a -c user.email=b commit -q --allow-empty -m '{SECRET}'"
CHANGE = f"echo '# {SECRET}' >> $(git ls-files | grep py$ | tail -1)"
# name -> what a careless image author leaves
FUTURES = {
    "a branch": f"git checkout -q -b later && {CHANGE} && {COMMIT} -a && git checkout -q main",
    "a tag": f"git checkout -q --detach && {COMMIT} && git -c user.name=a -c user.email=b"
    " tag -a -m later v2 && git checkout -q main",
    "a stash": f"{CHANGE} && git -c user.name=a -c user.email=b stash -q",
    "reflogs": f"{CHANGE} && {COMMIT} -a && git reset -q --hard BASE",
    "a branch that HEAD is on": f"{CHANGE} && {COMMIT} -a && git checkout -q -b x"
    " && git checkout -q BASE -- . && git branch -q -D main",
    "packed objects": f"git checkout -q -b later && {CHANGE} && {COMMIT} -a && git gc -q"
    " && git checkout -q main && git branch -q -D later",
    "a kept pack": f"{CHANGE} && {COMMIT} -a && git gc -q && for p in .git/objects/pack/*.pack; do"
    " touch ${p%.pack}.keep; done && git reset -q --hard BASE",
    "a loose blob": f"echo '{SECRET}' | git hash-object -w --stdin",
    "a replaced commit": f"{COMMIT} && later=$(git rev-parse HEAD) && git reset -q --hard BASE"
    " && git replace BASE $later",
    "a note": f"git -c user.name=a -c user.email=b notes add -m '{SECRET}' BASE",
    "another worktree": f"git worktree add -q /tmp/other && cd /tmp/other && {COMMIT}",
    "a remote": f"git clone -q . /tmp/remote && (cd /tmp/remote && {COMMIT})"
    " && git remote add origin /tmp/remote && git fetch -q origin",
    "borrowed objects": f"git clone -q . /tmp/lender && (cd /tmp/lender && {COMMIT}) &&"
    " mkdir -p .git/objects/info && echo /tmp/lender/.git/objects > .git/objects/info/alternates",
    "a bisection": f"{COMMIT} && git bisect start -q && git bisect bad && git reset -q --hard BASE",
}
LOOK = (
    "git for-each-ref; git stash list; git reflog --all; git log -p --all; git worktree list;"
    " git remote -v; git cat-file --batch-all-objects --batch; ls .git; git fsck --unreachable"
)


def strip(bench, instance: Instance, commands: str) -> tuple[str, str, str, bool]:
    """(what git finds, its status, start commit, whether the repository was clean) afterwards."""
    task = bench.environment.task(instance)

    async def body(sandbox: Sandbox) -> tuple[str, str, str, bool]:
        made = await sandbox.exec(commands.replace("BASE", instance.base_commit), timeout_s=60)
        assert made.exit_code == 0, made.output
        start, clean = await strip_history(instance, sandbox, trusted=False)
        seen = await sandbox.exec(LOOK, timeout_s=60, max_output_bytes=8 << 20)
        status = await sandbox.exec("git status --porcelain; git log -1", timeout_s=60)
        return seen.output, status.output, start, clean

    return bench.in_sandbox(task, body)


@pytest.mark.parametrize("name", FUTURES)
def test_no_trace_of_the_future_is_left(bench, name: str) -> None:
    instance = bench.environment.instance(bench.task())
    seen, status, start, clean = strip(bench, instance, FUTURES[name])
    assert SECRET not in seen
    assert not re.search(r"refs/(?!heads/main)|_HEAD|unreachable|/tmp/", seen)
    assert start == instance.base_commit
    assert status.startswith(f"commit {start}")
    assert not clean


def test_a_clean_repository_keeps_its_ancestors_and_is_left_alone(bench) -> None:
    instance = bench.environment.instance(bench.task())
    seen, _, start, clean = strip(bench, instance, "true")
    assert clean
    assert start == instance.base_commit
    assert instance.base_commit in seen


def test_what_the_image_changed_after_base_commit_is_no_work_of_the_agents(bench) -> None:
    instance = bench.environment.instance(bench.task())
    change = "echo made > build-info.txt; echo '# prepared' >> $(git ls-files | grep py$ | tail -1)"
    seen, status, start, clean = strip(bench, instance, change)
    again = strip(bench, instance, change)
    assert clean
    assert start == again[2] != instance.base_commit
    assert status.startswith(f"commit {start}")  # nothing is left to commit
    assert instance.base_commit in seen


def test_an_image_without_the_repository_is_named(bench) -> None:
    instance = bench.environment.instance(bench.task())
    with pytest.raises(InfrastructureError, match="holds no usable repository") as error:
        strip(bench, instance, "rm -rf .git")
    assert error.value.kind == "image"
    assert instance.image in str(error.value)
