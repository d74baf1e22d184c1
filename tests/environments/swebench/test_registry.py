"""SWE-bench's own path, end to end: images built, pushed to a real registry on this machine, pulled
under their official names, and graded from a parquet file in the data set's exact schema."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from environments.protocols import Sandbox, SandboxProvider, Task, UsageError
from environments.sandbox.select import open_provider
from environments.swebench import images
from environments.swebench.config import SweBenchConfig
from environments.swebench.engine import open_engine, present_images
from environments.swebench.environment import SweBench
from environments.swebench.image_names import official_image
from environments.swebench.instance import Instance, patched_files
from environments.swebench.pypi.build import build
from environments.swebench.pypi.source import Folder, PypiSource
from tests.environments.swebench.forgers import REPORT

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1200)]

PROJECTS = ("pathspec", "wcwidth", "tomlkit")
COLUMNS = (
    *("repo", "instance_id", "base_commit", "patch", "test_patch", "problem_statement"),
    *("hints_text", "created_at", "version", "FAIL_TO_PASS", "PASS_TO_PASS"),
    *("environment_setup_commit", "difficulty"),
    *("image", "eval_script", "log_parser", "eval_type"),  # swebench 5's own
)
DOCKERFILE = """\
FROM thundersync/mini:1
LABEL thundersync.scratch=""
ADD repository.tar /testbed/
ADD tools.tar /opt/tools/
ENV PYTHONPATH=/opt/tools
"""
# Commits, a tag, a stash, reflogs and dangling objects that hold the fix, packed and loose.
FUTURE = """\
git checkout -q -b future && git apply "$1" && git commit -qam "commit of tomorrow"
git tag fixed && git update-ref refs/remotes/origin/main HEAD && git gc -q
git checkout -q main && git apply "$1" && git stash -q
git checkout -q --detach && git apply "$1" && git commit -qam "commit of tomorrow"
git checkout -q main && git branch -q -D future && echo "made" > build-info.txt
"""


def record(instance: Instance) -> dict[str, Any]:
    """A row as the published data sets have it: test lists are JSON text."""
    return {
        "repo": instance.repo,
        "instance_id": instance.instance_id,
        "base_commit": instance.base_commit,
        "patch": instance.patch,
        "test_patch": instance.test_patch,
        "problem_statement": instance.problem_statement,
        "hints_text": "",
        "created_at": "2025-01-01T00:00:00Z",
        "version": instance.version,
        "FAIL_TO_PASS": json.dumps(list(instance.FAIL_TO_PASS)),
        "PASS_TO_PASS": json.dumps(list(instance.PASS_TO_PASS)),
        "environment_setup_commit": instance.base_commit,
        "difficulty": "15 min - 1 hour",
        "image": official_image(instance.instance_id),
        "eval_script": instance.eval_script,
        "log_parser": instance.log_parser,
        "eval_type": instance.eval_type,
    }


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def pypi_instances(data_dir: Path) -> tuple[list[Instance], Folder]:
    """The instances of PROJECTS, built from public source distributions, and their folder."""
    folder = Folder(build(str(data_dir), sandbox="bubblewrap"))
    source = PypiSource(str(data_dir))
    every = [i for split in source.splits for i in source.instances(split)]
    return [i for i in every if i.repo.removeprefix("pypi/") in PROJECTS], folder


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    return member


def write_task_repository(path: Path, instances: list[Instance], folder: Folder) -> Path:
    """swebench 5's layout, with what the Dockerfiles need beside them."""
    (path / "tasks").mkdir(parents=True)
    (path / "sweb.yaml").write_text(yaml.safe_dump({"datasets": ["own/data"], "splits": ["test"]}))
    for instance in instances:
        row = record(instance)
        task = path / "tasks" / instance.instance_id
        task.mkdir()
        kept = ("instance_id", "repo", "version", "base_commit", "image", "log_parser", "eval_type")
        meta = {key: row[key] for key in kept} | {"split": "test", "datasets": ["own/data"]}
        (task / "task.yaml").write_text(yaml.safe_dump(meta))
        lists = {"FAIL_TO_PASS": instance.FAIL_TO_PASS, "PASS_TO_PASS": instance.PASS_TO_PASS}
        (task / "tests.json").write_text(json.dumps(lists))
        for name, column in (
            ("gold.patch", "patch"), ("test.patch", "test_patch"), ("eval.sh", "eval_script"),
            ("problem_statement.md", "problem_statement"),
        ):  # fmt: skip
            (task / name).write_text(row[column], newline="")
        (task / "Dockerfile").write_text(DOCKERFILE)
        with tarfile.open(folder.repository(instance.instance_id)) as tar:
            tar.extractall(task / "repository", filter="data")
        git = ["-c", "user.name=a", "-c", "user.email=b", "-c", "safe.directory=*"]
        script = FUTURE.replace("git ", f"git {' '.join(git)} ")
        subprocess.run(
            ["bash", "-ec", script, "future", str(task / "gold.patch")],
            cwd=task / "repository", check=True, capture_output=True,
        )  # fmt: skip
        for name, tree in (("repository", task / "repository"), ("tools", folder.tools)):
            with tarfile.open(task / f"{name}.tar", "w") as tar:
                tar.add(tree, ".", filter=_as_root)
    return path


# Refs, stashes, reflogs, and every object, whatever refers to it.
_ALL_OF_GIT = (
    "git for-each-ref; git stash list; git reflog --all; git log -p --all; ls -a .git;"
    " git cat-file --batch-all-objects --batch"
)
_CONFIG = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a registry that lives as long as the module's tests."""
    program = shutil.which("docker-registry")
    assert program, "this test needs a registry: apt-get install docker-registry"
    folder = tmp_path_factory.mktemp("registry")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "config.yml"
    config.write_text(_CONFIG.format(root=folder / "data", port=port))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log)
    try:
        _wait(f"http://127.0.0.1:{port}/v2/")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait(url: str) -> None:
    give_up = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                assert answer.status == 200
                return
        except OSError:
            assert time.monotonic() < give_up, f"{url} does not answer"
            time.sleep(0.1)


def command(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, JSON line and standard error of the images tool."""
    line = [sys.executable, "-m", "environments.swebench.images", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


@pytest.fixture(scope="module")
def parquet(registry: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data set as a parquet file; its images are in the registry and no longer on the engine.
    They were built from a task repository by the images tool."""
    folder = tmp_path_factory.mktemp("data")
    instances, built = pypi_instances(folder / "pypi")
    rows = [record(instance) for instance in instances]
    repository = write_task_repository(folder / "tasks", instances, built)
    names = [row["image"] for row in rows]
    client = open_engine("test")
    try:
        code, report, said = command("build", f"env.dataset={repository}")
        assert (code, sorted(report["built"])) == (0, sorted(names)), said
        for name in names:
            pushed = f"{registry}/{name}"
            client.api.tag(name, *pushed.rsplit(":", 1))
            for step in client.api.push(pushed, stream=True, decode=True):
                assert "error" not in step, step
            client.api.remove_image(pushed)
            client.api.remove_image(name)
        assert not set(names) & present_images(client).keys()
        yield write_parquet(folder / "own.parquet", rows)
    finally:
        for name in set(names) & present_images(client).keys():
            client.api.remove_image(name, force=True)
        client.close()


async def _play(
    environment: SweBench, task: Task, provider: SandboxProvider, oracle: bool
) -> tuple[float, dict[str, Any], tuple[str, str]]:
    """(reward, report, (what git can still find, the text of the tree)) of one attempt."""
    sandbox = await provider.start(environment.sandbox_spec(task))
    try:
        await environment.prepare(task, sandbox)
        seen = await _output(sandbox, _ALL_OF_GIT)
        tree = await _output(sandbox, "cat $(git ls-files)")
        for line in environment.oracle_commands(task) if oracle else ():
            result = await sandbox.exec(line, timeout_s=60)
            assert result.exit_code == 0, result.output
        submission = await environment.collect(task, sandbox)
    finally:
        await sandbox.stop()
    assert bool(submission.patch) == oracle  # what the image's author added is not the agent's
    verdict = await environment.verify(task, submission, provider)
    return verdict.reward, dict(verdict.report), (seen, tree)


async def _attack(
    environment: SweBench, task: Task, provider: SandboxProvider
) -> tuple[float, dict[str, Any]]:
    """(reward, report) of an agent whose module makes every report of pytest a passed one."""
    patched = patched_files(environment.instance(task).patch)
    paths = [path for path in patched if path.endswith(".py")]
    sandbox = await provider.start(environment.sandbox_spec(task))
    try:
        await environment.prepare(task, sandbox)
        for path in paths:
            await sandbox.put({path: await sandbox.get(path) + REPORT.encode()})
        submission = await environment.collect(task, sandbox)
    finally:
        await sandbox.stop()
    assert paths and all(path in submission.patch for path in paths)
    verdict = await environment.verify(task, submission, provider)
    return verdict.reward, dict(verdict.report)


async def _output(sandbox: Sandbox, look: str) -> str:
    result = await sandbox.exec(look, timeout_s=60, max_output_bytes=64 << 20)
    assert result.omitted_bytes == 0
    return result.output


def test_images_are_pulled_by_their_official_names_and_graded(registry: str, parquet: Path) -> None:
    config = SweBenchConfig(dataset=str(parquet), split="test", verify_timeout_s=300.0)
    environment = SweBench(config)
    tasks = environment.tasks("test")
    assert len(tasks) == len(PROJECTS)
    with pytest.raises(UsageError, match=r"3 of 3 images are not on the engine.*pull env"):
        environment.source.check_engine()

    mirrored = (f"env.dataset={parquet}", f"env.registry={registry}")
    code, report, said = command("disk", *mirrored)
    assert (code, report["missing"], report["unknown"]) == (0, 3, 0), said
    assert report["bytes_to_fetch"] > 10 << 20
    code, report, said = command("pull", *mirrored)
    assert (code, len(report["pulled"]), report["failed"]) == (0, 3, {}), said
    assert all(i.startswith("swebench/sweb.eval.x86_64.pypi_1776_") for i in report["pulled"])
    code, report, said = command("list", f"env.dataset={parquet}")
    assert (code, report["missing"]) == (0, 0), said
    environment.source.check_engine()
    environment.warm_up()

    attacks = []

    async def scenario() -> list[tuple[float, dict[str, Any], tuple[str, str]]]:
        provider = await open_provider(
            "docker", image=environment.sandbox_spec(tasks[0]).image, run_id="test-registry",
            max_parallel=2,
        )  # fmt: skip
        try:
            attacks.extend([await _attack(environment, task, provider) for task in tasks])
            return [
                await _play(environment, task, provider, oracle)
                for task in tasks
                for oracle in (True, False)
            ]
        finally:
            await provider.close()
            assert provider.counters.leaked == 0

    outcomes = asyncio.run(scenario())
    assert [reward for reward, _, _ in outcomes] == [1.0, 0.0] * len(PROJECTS), outcomes
    for reward, report in attacks:
        assert (reward, report.get("integrity")) == (0.0, ["forged_results"]), report
    for task, (_, _, (seen, tree)) in zip(tasks, outcomes[::2], strict=True):
        instance = environment.instance(task)
        assert instance.base_commit in seen
        added = [
            x[1:].strip() for x in instance.patch.split("\n") if x[:1] == "+" and x[:3] != "+++"
        ]
        fix = [line for line in added if len(line) > 12 and line not in tree]
        assert fix
        assert not [line for line in fix if line in seen]
        for trace in ("of tomorrow", "refs/tags/", "refs/stash", "refs/rem", "ORIG_HEAD"):
            assert trace not in seen, trace


def test_the_whole_command_solves_and_fails_the_file(registry: str, parquet: Path) -> None:
    pulled = command("pull", f"env.dataset={parquet}", f"env.registry={registry}")
    assert pulled[0] == 0, pulled[2]
    for agent, rate in (("oracle", 1.0), ("nop", 0.0)):
        line = [
            *(sys.executable, "-m", "harness.evaluate", "env=swebench", f"agent={agent}"),
            *(f"env.dataset={parquet}", "env.split=test", "sandbox=docker"),
            *("evaluation.samples_per_task=1", "sandbox.max_parallel=2"),
        ]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout.splitlines()[-1])
        assert (report["tasks"], report["solve_rate"], report["lost"]) == (3, rate, 0), done.stderr


def test_the_schema_is_swebenchs(parquet: Path) -> None:
    import pyarrow.parquet

    assert tuple(pyarrow.parquet.read_schema(parquet).names) == COLUMNS
    assert images.UNPACKED > 1
