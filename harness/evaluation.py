"""Held-out solve rate: n samples per task at fixed seeds, with its standard error and pass@k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.protocols import InfrastructureKind
from harness.protocols import (
    Clock,
    Environment,
    Event,
    InfrastructureError,
    Task,
    Trajectory,
    TrajectoryLost,
    UsageError,
)
from harness.rollout import Rollouts, derive_seed
from harness.solve_rates import passes, solve_rate, standard_error


@dataclass(frozen=True)
class Evaluation:
    """`solve_rate` is the mean over tasks of the share of judged samples with reward 1; the
    standard error treats tasks as the sample (harness/solve_rates.py). `pass_at_k` has every k up
    to `samples_per_task`. A sample lost to infrastructure is left out and counted."""

    solve_rate: float | None
    standard_error: float | None
    tasks: int
    samples_per_task: int
    lost: int
    pass_at_k: dict[int, float | None] = field(default_factory=dict)


MADE_FOR_EVALUATION = ("test", "eval", "validation")  # splits of published data sets
OPT_IN = "train_on_evaluation"  # a key of an environment's config, where it has one


def check_held_out(environment: Environment, split: str, eval_split: str, env: Any = None) -> bool:
    """Raises UsageError where the tasks to train on were made for evaluation, unless `env`, the
    environment's config, says that this is wanted; and where the two splits, whatever they are
    called, share a task. Returns whether they were made for evaluation."""
    made_for = {task.split for task in environment.tasks(split)} & {*MADE_FOR_EVALUATION}
    if made_for and not getattr(env, OPT_IN, False):
        way_out = f", or take env.{OPT_IN}=true" if hasattr(env, OPT_IN) else ""
        raise UsageError(
            f"env.split={split}: {environment.dataset} made these tasks for evaluation (split "
            f"{min(made_for)}); name a split for training{way_out}"
        )
    held_out = {task.task_id for task in environment.tasks(eval_split)}
    shared = [task.task_id for task in environment.tasks(split) if task.task_id in held_out]
    if shared:
        raise UsageError(
            f"env.split={split}: {len(shared)} of its tasks, such as {shared[0]}, are in "
            f"env.eval_split={eval_split} too, and training would see held-out tasks; of "
            f"{environment.dataset}, take train and eval"
        )
    return bool(made_for)


async def evaluate(
    rollouts: Rollouts,
    clock: Clock,
    tasks: Sequence[Task],
    samples_per_task: int,
    seed: int,
    label: str,
    record: Callable[[Trajectory], None],
) -> Evaluation:
    """Run every sample side by side; `record` gets each trajectory that was judged."""

    kind: InfrastructureKind = "start"

    def hear(event: Event) -> None:
        """Nobody schedules an evaluation; the kind of the last loss is kept."""
        nonlocal kind
        if isinstance(event, TrajectoryLost):
            kind = event.kind

    lives = [
        (
            task.task_id,
            clock.spawn(
                rollouts.run(task, t, n, derive_seed(seed, task.task_id, n), hear, label),
                f"{label}{t}-{n}",
            ),
        )
        for t, task in enumerate(tasks)
        for n in range(samples_per_task)
    ]
    solved: dict[str, list[bool]] = {}
    lost = 0
    for task_id, life in lives:
        trajectory = await life
        if trajectory is None or trajectory.reward is None:
            lost += 1
            continue
        record(trajectory)
        solved.setdefault(task_id, []).append(trajectory.reward == 1.0)
    if lost and not solved:
        raise InfrastructureError(kind, f"all {lost} samples were lost; nothing was judged")
    return Evaluation(
        solve_rate=solve_rate(solved),
        standard_error=standard_error(solved),
        tasks=len(tasks),
        samples_per_task=samples_per_task,
        lost=lost,
        pass_at_k=passes(solved, samples_per_task),
    )
