"""Data sets of task folders: what is left out is said in a line, and the others go on."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from environments.protocols import UsageError
from environments.terminal_bench import dataset, folder, network
from environments.terminal_bench.config import TerminalBenchConfig
from environments.terminal_bench.environment import TerminalBench
from environments.terminal_bench.tasktoml import TaskError

SETTINGS = 'schema_version = "1.4"\n[environment]\nnetwork_mode = "no-network"\n'


def test_a_folder_is_for_evaluation_unless_it_has_both_splits(make_task, tmp_path) -> None:
    make_task("b")
    make_task("a")
    flat = TerminalBench(TerminalBenchConfig(dataset=str(tmp_path / "tasks")))
    assert [task.task_id for task in flat.tasks("eval")] == ["a", "b"]
    with pytest.raises(UsageError, match=r"env.split=train: .* has eval; to train, put"):
        flat.tasks("train")
    make_task("train/c")
    make_task("eval/d")
    split = TerminalBench(TerminalBenchConfig(dataset=str(tmp_path / "tasks")))
    assert [task.task_id for task in split.tasks("train")] == ["c"]
    assert [task.task_id for task in split.tasks("eval")] == ["d"]


@pytest.mark.parametrize("name", ["", "/nowhere", "minni"])
def test_no_data_set(name: str, tmp_path) -> None:
    with pytest.raises(UsageError, match=r"env.dataset="):
        TerminalBench(TerminalBenchConfig(dataset=name or str(tmp_path))).tasks("eval")


def test_the_hash_follows_the_content_alone(make_task, tmp_path) -> None:
    path = make_task("a")
    first, image = folder.load(path).sha256, folder.load(path).image
    (path / "task.toml").touch()
    (path / "environment/Dockerfile").touch()
    assert (folder.load(path).sha256, folder.load(path).image) == (first, image)
    (path / "tests/test.sh").write_text("exit 0\n")
    assert folder.load(path).sha256 != first
    assert folder.load(path).image == image  # tests are no part of it
    (path / "environment/more").write_text("")
    assert folder.load(path).image != image


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda p: (p / "task.toml").unlink(), "task.toml: is missing"),
        (lambda p: (p / "instruction.md").write_text(" \n"), "instruction.md: is empty"),
        (lambda p: (p / "instruction.md").write_bytes(b"\xff"), "instruction.md: cannot be read"),
        (lambda p: (p / "tests/test.sh").unlink(), "tests/test.sh: is missing"),
        (lambda p: (p / "environment/Dockerfile").unlink(), "environment/Dockerfile: is missing"),
        (lambda p: (p / "environment/Dockerfile").write_text("RUN x"), "has no FROM"),
        (
            lambda p: (p / "environment/docker-compose.yaml").write_text(""),
            "docker-compose.yaml: several containers",
        ),
        (lambda p: (p / "tests/x").symlink_to("/etc/passwd"), "tests/x: is a symbolic link"),
    ],
)
def test_a_broken_folder_is_one_line(make_task, break_it, words: str) -> None:
    path = make_task("broken")
    break_it(path)
    with pytest.raises(TaskError) as caught:
        folder.load(path)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("toml", "words", "settings"),
    [
        ("", "environment.network_mode: asks for the public network", {"network": "public"}),
        (
            "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['pypi.org']",
            "environment.network_mode: asks for pypi.org; env.network=allowed grants that",
            {"network": "allowed"},
        ),
        (
            "[environment]\nnetwork_mode = 'no-network'\n[verifier]\nallowed_hosts = ['pypi.org']",
            "verifier.network_mode: asks for pypi.org",
            {"ignore": ["verifier.network_mode"]},
        ),
        (
            "[environment]\nnetwork_mode = 'no-network'\n[agent]\nnetwork_mode = 'public'",
            "agent.network_mode: asks for the public network",
            {"ignore": ["agent.network_mode"]},
        ),
        (
            "artifacts = ['/app/x']\n[environment]\nnetwork_mode = 'no-network'",
            "artifacts: no files are copied out; to run it without, add artifacts to env.ignore",
            {"ignore": ["artifacts"]},
        ),
        (
            "[environment]\nnetwork_mode = 'no-network'\ngpus = 2",
            "environment.gpus: sandboxes have no GPU",
            {"ignore": ["environment.gpus"]},
        ),
    ],
)
def test_what_cannot_be_given_is_refused_unless_the_user_says_so(
    make_task, toml: str, words: str, settings
) -> None:
    task = folder.load(make_task(toml=f'schema_version = "1.4"\n{toml}\n'))
    with pytest.raises(TaskError) as caught:
        dataset.refusal(task, TerminalBenchConfig(network="none"))
    assert words in str(caught.value)
    dataset.refusal(task, TerminalBenchConfig(**settings))


def test_a_network_that_would_change_is_refused_even_where_it_is_granted(make_task) -> None:
    toml = 'schema_version = "1.4"\n[agent]\nnetwork_mode = "no-network"\n'
    task = folder.load(make_task(toml=toml))
    with pytest.raises(TaskError, match="public after no-network for the agent"):
        dataset.refusal(task, TerminalBenchConfig(network="public"))
    empty = 'schema_version = "1.4"\n[environment]\nnetwork_mode = "allowlist"\n'
    allowed = folder.load(make_task(toml=empty))
    assert network.granted(allowed, TerminalBenchConfig()) == network.Network()


def test_agent_and_verifier_have_their_own_allowed_hosts(make_task) -> None:
    toml = 'schema_version = "1.4"\n[agent]\nallowed_hosts = ["a.b", "pypi.org"]\n'
    toml += '[verifier]\nallowed_hosts = ["*.c.d", "a.b"]\n'
    found = network.granted(folder.load(make_task(toml=toml)), TerminalBenchConfig())
    assert (found.public, found.key) == (False, "agent.network_mode")
    assert (found.agent_hosts, found.verifier_hosts) == (("a.b", "pypi.org"), ("*.c.d", "a.b"))
    assert found.later_hosts == ("*.c.d",)


@pytest.mark.parametrize("host", ["10.0.0.0/8", "8.8.8.8", "::1", "127.1", "2130706433", "0x7f.1"])
def test_addresses_are_no_allowed_hosts(make_task, host: str) -> None:
    toml = 'schema_version = "1.4"\n[agent]\nnetwork_mode = "no-network"\n'
    toml += f'[verifier]\nallowed_hosts = ["pypi.org", "{host}"]\n'
    task = folder.load(make_task(toml=toml))
    with pytest.raises(TaskError, match=f"verifier.allowed_hosts: {host}: .* names, not addr"):
        dataset.refusal(task, TerminalBenchConfig())
    dataset.refusal(task, TerminalBenchConfig(ignore=["verifier.network_mode"]))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"network": "bridge"}, "env.network='bridge': use none or allowed or public"),
        ({"agent_processes": "stop"}, "env.agent_processes='stop': use kill or keep"),
        ({"ignore": ["verifier.user"]}, "env.ignore=verifier.user: use one of artifacts"),
        ({"command_timeout_s": 0.0}, "env.command_timeout_s=0.0"),
        ({"pids": 0}, "env.pids=0 must be 1 or more"),
    ],
)
def test_a_wrong_setting_is_said(settings, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        TerminalBenchConfig(**settings).check()
    assert words in str(caught.value)


def test_bad_tasks_are_left_out_in_a_line_each_and_the_others_are_evaluated(
    make_task, tmp_path
) -> None:
    """As a command, in one go: a misspelt key, a script that never ends, and two sound tasks."""
    make_task("sound")
    make_task("sound-too")
    make_task("misspelt", toml=SETTINGS + "memori_mb = 3\n")
    make_task("needs-more", toml=SETTINGS + "gpus = 1\n")
    endless = SETTINGS.replace("[env", "[verifier]\ntimeout_sec = 0.5\n[env")
    make_task("endless", toml=endless, test="#!/bin/bash\nsleep 100\n")
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "harness.evaluate", "env=terminal_bench", "agent=oracle"),
            *(f"env.dataset={tmp_path / 'tasks'}", "sandbox=bubblewrap", "rollout.retries=0"),
            "evaluation.samples_per_task=1",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    line = json.loads(ended.stdout.splitlines()[-1])
    assert (line["tasks"], line["lost"], line["solve_rate"]) == (3, 1, 1.0)
    assert line["infrastructure_errors"] == {"verifier_timeout": 1}
    lost = [text for text in ended.stderr.splitlines() if text.startswith("trajectory lost: ")]
    assert len(lost) == 1
    assert "task endless: " in lost[0] and "verifier.timeout_sec = 0.5" in lost[0]
    left_out = [text for text in ended.stderr.splitlines() if text.startswith("task left out: ")]
    assert len(left_out) == 2
    assert "misspelt/task.toml: environment.memori_mb: no such key" in left_out[0]
    assert "needs-more/task.toml: environment.gpus" in left_out[1]
