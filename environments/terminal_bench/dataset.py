"""Which task folders a data set has, split by split, and why some of them are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from environments.protocols import UsageError
from environments.terminal_bench import folder
from environments.terminal_bench.config import TerminalBenchConfig, way_out
from environments.terminal_bench.folder import TaskFolder
from environments.terminal_bench.network import granted
from environments.terminal_bench.tasktoml import TaskError

MINI_TASKS = Path(__file__).with_name("mini") / "tasks"
SPLITS = ("train", "eval")


@dataclass(frozen=True)
class TaskSet:
    """The tasks of one split that can be run, in order of their names, and one line for each that
    cannot."""

    tasks: Sequence[TaskFolder]
    refused: Sequence[str]


def splits(dataset: str) -> dict[str, Path]:
    """Split -> folder of task folders. Raises UsageError where `env.dataset` names neither."""
    root = MINI_TASKS if dataset == "mini" else Path(dataset).expanduser()
    if not root.is_dir():
        raise UsageError(f"env.dataset={dataset}: no such folder; use mini, or a folder of tasks")
    named = {split: root / split for split in SPLITS if any((root / split).glob("*/task.toml"))}
    if named:
        return named
    if not any(root.glob("*/task.toml")):
        raise UsageError(f"env.dataset={dataset}: no folder in it has a task.toml")
    return {"eval": root}  # a published benchmark: its tasks are no training data


def read(config: TerminalBenchConfig, split: str) -> TaskSet:
    """Raises UsageError for a split that the data set lacks, or that has no task to run."""
    known = splits(config.dataset)
    if split not in known:
        raise UsageError(
            f"env.split={split}: env.dataset={config.dataset} has {', '.join(known)}; "
            "to train, put task folders into its train/ and eval/"
        )
    tasks, refused = [], []
    for path in sorted(p for p in known[split].iterdir() if p.is_dir()):
        try:
            task = folder.load(path)
            refusal(task, config)
        except TaskError as error:
            refused.append(str(error))
        else:
            tasks.append(task)
    if not tasks:
        why = f"; the first: {refused[0]}" if refused else ""
        raise UsageError(
            f"env.dataset={config.dataset}: none of {len(refused)} {split} tasks can be run{why}"
        )
    return TaskSet(tasks, refused)


def refusal(task: TaskFolder, config: TerminalBenchConfig) -> None:
    """Raises TaskError where a task asks for what this project cannot give it."""
    file = task.path / "task.toml"
    for key, why in task.settings.unsupported:
        if key not in config.ignore:
            raise TaskError(f"{file}: {key}: {why}{way_out(key)}")
    granted(task, config)
