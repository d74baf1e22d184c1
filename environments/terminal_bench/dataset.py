"""Which task folders a data set has, split by split, and why some of them are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from environments.protocols import UsageError
from environments.terminal_bench import folder, schema, tasktoml
from environments.terminal_bench.config import IGNORABLE, TerminalBenchConfig
from environments.terminal_bench.folder import TaskFolder
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
            raise TaskError(f"{file}: {key}: {why}{_way_out(key)}")
    network(task, config)


def network(task: TaskFolder, config: TerminalBenchConfig) -> str:
    """The network of a task's sandbox: public or no-network. Raises TaskError."""
    file = task.path / "task.toml"
    agent, verifier = (
        _granted(phase, config, str(file))
        for phase in (task.settings.agent_network, task.settings.verifier_network)
    )
    if agent != verifier:
        key = task.settings.verifier_network.key
        raise TaskError(
            f"{file}: {key}: {verifier} after {agent} for the agent; a sandbox keeps its network"
        )
    return agent


def _granted(phase: tasktoml.Network, config: TerminalBenchConfig, file: str) -> str:
    if phase.mode == schema.NO_NETWORK or phase.key in config.ignore:
        return schema.NO_NETWORK
    if phase.mode == schema.ALLOWLIST:
        if not phase.allowed_hosts:
            return schema.NO_NETWORK
        raise TaskError(
            f"{file}: {phase.key}: no sandbox here can allow single hosts{_way_out(phase.key)}"
        )
    if config.network != "public":
        raise TaskError(
            f"{file}: {phase.key}: asks for the public network (the default); "
            f"env.network=public grants it{_way_out(phase.key)}"
        )
    return schema.PUBLIC


def _way_out(key: str) -> str:
    return f"; to run it without, add {key} to env.ignore" if key in IGNORABLE else ""
