"""Makes SWE-bench instances of the table's releases; which tests count is found by running them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from environments.protocols import SandboxProvider, UsageError
from environments.sandbox.images import MINI_IMAGE
from environments.swebench import grading, verify
from environments.swebench.gitrepo import Repository, build_repository
from environments.swebench.instance import END_TEST_OUTPUT, Instance, make_eval_script
from environments.swebench.pypi.diff import tree_diff
from environments.swebench.pypi.download import read_sdist
from environments.swebench.pypi.releases import Release
from environments.swebench.source import TaskSource

SPLIT = "eval"
TESTS = "tests/"
COMMAND = (
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python3 -m pytest -rA -q --color=no -o addopts= -W ignore "
    "-o filterwarnings= -p no:cacheprovider tests"
)
_RUN_LIMIT_S = 120.0
_MAX_LOG_BYTES = 8 << 20
_FOLDER = "/tmp/.verify"


@dataclass(frozen=True)
class Draft:
    """An instance whose test lists are still empty, and its repository."""

    instance: Instance
    repository: Repository


def draft(release: Release, sdists: Path) -> Draft:
    """The instance of one pair of source distributions, without its test lists."""
    old, new = (
        _in_repository(read_sdist(sdists / pin.sdist_name), release)
        for pin in (release.buggy, release.fixed)
    )
    repository = build_repository(old, f"{release.project} {release.buggy.version}")
    sources = [_sources(files, release) for files in (old, new)]
    tests = [{p: c for p, c in files.items() if p.startswith(TESTS)} for files in (old, new)]
    test_patch = tree_diff(*tests)
    instance = Instance(
        instance_id=release.instance_id,
        repo=f"pypi/{release.project}",
        base_commit=repository.commit,
        problem_statement=release.issue,
        patch=tree_diff(*sources),
        test_patch=test_patch,
        FAIL_TO_PASS=(),
        PASS_TO_PASS=(),
        version=release.buggy.version,
        image=MINI_IMAGE,
        eval_script=make_eval_script(repository.commit, test_patch, COMMAND),
        log_parser="parse_log_pytest",
        split=SPLIT,
        difficulty=release.difficulty,
    )
    return Draft(instance, repository)


async def validated(source: TaskSource, instance: Instance, provider: SandboxProvider) -> Instance:
    """`instance` with FAIL_TO_PASS and PASS_TO_PASS, from a run without and one with its patch."""
    before, after = await asyncio.gather(
        _outcomes(source, instance, "", provider),
        _outcomes(source, instance, instance.patch, provider),
    )
    passing = sorted(name for name, status in after.items() if status == "PASSED")
    return replace(
        instance,
        FAIL_TO_PASS=tuple(name for name in passing if before.get(name) != "PASSED"),
        PASS_TO_PASS=tuple(name for name in passing if before.get(name) == "PASSED"),
    )


async def _outcomes(
    source: TaskSource, instance: Instance, patch: str, provider: SandboxProvider
) -> dict[str, str]:
    """Test -> PASSED, FAILED and so on, by swebench's parser."""
    sandbox = await provider.start(source.sandbox_spec(instance))
    try:
        await verify.prepare(source, instance, sandbox)
        script = grading.full_eval_script(instance)
        files = {"patch.diff": patch.encode(), "eval.sh": script.encode()}
        await sandbox.put(files, base=_FOLDER)
        apply = f"git apply --whitespace=nowarn {_FOLDER}/patch.diff && " if patch else ""
        result = await sandbox.exec(
            f"{apply}bash {_FOLDER}/eval.sh 2>&1",
            timeout_s=_RUN_LIMIT_S,
            max_output_bytes=_MAX_LOG_BYTES,
        )
    finally:
        await sandbox.stop()
    outcomes = grading.outcomes(instance, result.output)
    if not outcomes or result.timed_out or END_TEST_OUTPUT not in result.output:
        tail = " ".join(result.output[-300:].split())
        raise UsageError(f"{instance.instance_id}: its tests do not run: {tail}")
    return outcomes


def _in_repository(files: dict[str, bytes], release: Release) -> dict[str, bytes]:
    return {
        path: content
        for path, content in files.items()
        if path.startswith(release.kept)
        or not (path.startswith(release.left_out) or path.endswith(".pyc") or path == "PKG-INFO")
    }


def _sources(files: dict[str, bytes], release: Release) -> dict[str, bytes]:
    return {
        path: content
        for path, content in files.items()
        if path in release.sources or (path.startswith(release.sources) and path.endswith(".py"))
    }
