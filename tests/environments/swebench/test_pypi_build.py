"""Builds the pypi data set from PyPI, and judges gold patches and empty ones in real sandboxes."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from environments.protocols import SandboxProvider, Task
from environments.sandbox.images import MINI_IMAGE
from environments.sandbox.select import SandboxKind, open_provider
from environments.swebench.config import SweBenchConfig
from environments.swebench.environment import SweBench
from environments.swebench.pypi.releases import read_table

PARALLEL = 2


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of its own, built by the command that users type."""
    folder = tmp_path_factory.mktemp("pypi")
    command = [sys.executable, "-m", "environments.swebench.pypi", f"data_dir={folder}"]
    outcome = subprocess.run(
        [*command, "sandbox=bubblewrap"], capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    assert Path(json.loads(outcome.stdout)["data"]).is_dir()
    assert {path.name.split("-")[0] for path in folder.iterdir()} == {".lock", "data", "sdists"}
    return folder


def in_order(environment: SweBench) -> list[Task]:
    """The tasks of both splits in the table's order; the splits share none."""
    tasks = [*environment.tasks("train"), *environment.tasks("eval")]
    order = [release.instance_id for release in read_table().releases]
    return sorted(tasks, key=lambda task: order.index(task.task_id))


async def attempt(
    environment: SweBench, task: Task, provider: SandboxProvider, *, oracle: bool
) -> Mapping[str, Any]:
    """The report on one attempt that applies the gold patch, or does nothing."""
    sandbox = await provider.start(environment.sandbox_spec(task))
    try:
        await environment.prepare(task, sandbox)
        for command in environment.oracle_commands(task) if oracle else ():
            result = await sandbox.exec(command, timeout_s=60)
            assert result.exit_code == 0, result.output
        submission = await environment.collect(task, sandbox)
    finally:
        await sandbox.stop()
    assert bool(submission.patch) == oracle
    verdict = await environment.verify(task, submission, provider)
    return {"task": task.task_id, "reward": verdict.reward, **verdict.report}


async def attempt_all(kind: SandboxKind, environment: SweBench) -> list[list[Mapping[str, Any]]]:
    environment.warm_up()
    provider = await open_provider(
        kind, image=MINI_IMAGE, run_id="test-pypi", max_parallel=PARALLEL
    )
    try:
        tasks = in_order(environment)
        outcomes = [
            await asyncio.gather(
                *(attempt(environment, task, provider, oracle=oracle) for task in tasks)
            )
            for oracle in (True, False)
        ]
    finally:
        await provider.close()
    assert provider.counters.leaked == 0
    return outcomes


@pytest.mark.parametrize(
    "kind", ["bubblewrap", pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.slow])]
)
def test_gold_patches_resolve_all_six_and_doing_nothing_none(
    kind: SandboxKind, data_dir: Path
) -> None:
    environment = SweBench(SweBenchConfig(dataset="pypi", data_dir=str(data_dir)))
    gold, nothing = asyncio.run(attempt_all(kind, environment))
    releases = read_table().releases
    assert [r["reward"] for r in gold] == [1.0] * 6, gold
    assert [r["reward"] for r in nothing] == [0.0] * 6, nothing
    for release, with_patch, without in zip(releases, gold, nothing, strict=True):
        assert with_patch["task"] == release.instance_id
        assert with_patch["fail_to_pass_success"] == release.fail_to_pass
        assert with_patch["pass_to_pass_success"] == release.pass_to_pass
        assert without["fail_to_pass_failure"] == release.fail_to_pass
        assert without["pass_to_pass_success"] == release.pass_to_pass


def test_the_agent_gets_the_issue_and_one_clean_commit_without_the_hidden_tests(
    data_dir: Path, tmp_path: Path
) -> None:
    environment = SweBench(SweBenchConfig(dataset="pypi", data_dir=str(data_dir)))
    for task, release in zip(in_order(environment), read_table().releases, strict=True):
        message = environment.first_message(task)
        assert release.issue in message and "/testbed" in message
        assert release.fixed.version not in message
        instance = environment.instance(task)
        folder = tmp_path / release.project
        folder.mkdir()
        with tarfile.open(
            fileobj=io.BytesIO(environment.source.repository(instance) or b"")
        ) as tar:
            tar.extractall(folder, filter="data")

        def git(*arguments: str, text: str = "", cwd: Path = folder) -> str:
            command = ["git", "-c", "safe.directory=*", *arguments]
            outcome = subprocess.run(command, cwd=cwd, input=text, capture_output=True, text=True)
            assert outcome.returncode == 0, outcome.stderr
            return outcome.stdout

        assert git("rev-list", "--all").split() == [instance.base_commit]
        assert git("fsck", "--unreachable") == ""
        assert git("status", "--porcelain") == ""
        for patch in (instance.patch, instance.test_patch):
            git("apply", "--check", "-", text=patch)


@pytest.mark.slow
def test_the_main_job_trains_on_it_from_beginning_to_end(data_dir: Path, tmp_path: Path) -> None:
    """The tiny policy solves none of these: what is shown is the path, with turns and an update."""
    command = [
        *(sys.executable, "-m", "harness.run", "schedule=stream", "env=swebench"),
        *("env.dataset=pypi", f"env.data_dir={data_dir}", "env.agent_prompt=short"),
        *("rollout.max_context_tokens=1024", "rollout.groups_per_batch=4", "rollout.group_size=2"),
        *("budget.limit=1", "evaluation.samples_per_task=1", "sandbox=bubblewrap"),
        *("tracking=none", f"hydra.run.dir={tmp_path}"),
    ]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["dataset"], summary["updates"]) == ("finished", "pypi", 1)
    assert (summary["trajectories"], summary["trajectories_lost"]) == (8, 0)
    assert summary["sandboxes"]["leaked"] == 0
    lines = (tmp_path / "trajectories.jsonl").read_text().splitlines()
    turns = [len(json.loads(line)["turns"]) for line in lines]
    assert sum(turns) >= 6  # all but those of the task whose issue alone fills the context
    assert "leaves no turn in 1 of the 4 tasks of pypi/train" in outcome.stderr
