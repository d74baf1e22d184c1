"""The bundled tasks: the gold solution scores 1, nothing scores 0, and each is complete."""

from __future__ import annotations

import re

import pytest

from environments.protocols import Sandbox
from environments.terminal_bench.dataset import MINI_TASKS
from environments.terminal_bench.environment import TerminalBench

TASKS = sorted(path.parent for path in MINI_TASKS.glob("*/*/task.toml"))


def test_twelve_are_held_out_and_eight_are_for_training() -> None:
    environment = TerminalBench()
    assert [len(environment.tasks(split)) for split in ("eval", "train")] == [12, 8]
    assert set(environment.data_hashes()) == {"mini/eval", "mini/train"}
    categories = [
        environment.folder(task).settings.metadata["category"] for task in environment.tasks("eval")
    ]
    assert len(set(categories)) >= 10


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.name)
def test_a_task_is_whole_and_our_own(path) -> None:
    texts = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert not [file for file, text in texts.items() if re.search(rb"(?i)canary|harbor", text)]
    toml = (path / "task.toml").read_text(encoding="utf-8")
    for key in ("schema_version", "[verifier]\ntimeout_sec", "network_mode", "memory_mb"):
        assert key in toml
    assert (path / "environment/Dockerfile").read_text().startswith("FROM thundersync/mini:1\n")


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.name)
def test_gold_is_one_and_nothing_is_zero(bench, path) -> None:
    environment, task = bench.environment_of(path)
    gold = bench.judge(path, list(environment.oracle_commands(task)))
    assert (gold.reward, gold.report.get("integrity")) == (1.0, None), gold.report["output"]
    nothing = bench.judge(path, [])
    assert (nothing.reward, nothing.report["reason"]) == (0.0, "judged")


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.name)
def test_the_machine_holds_no_gold_and_no_setup(bench, path) -> None:
    """What makes a task's files is gone before the agent comes, like the image's own history."""
    environment, task = bench.environment_of(path)

    async def look(sandbox: Sandbox) -> list[str]:
        listed = "find /app /tmp /tests /solution /logs -mindepth 1 -name '*' -printf '%f\\n'"
        return (await sandbox.exec(listed, timeout_s=20)).output.split()

    names = bench.in_sandbox(environment, task, look)
    assert not {"setup.sh", "setup.py", "solve.sh", "test.sh", "test_state.py"} & set(names)
    assert names or path.name == "status-server"
