"""Solve rate of an agent on a split: python -m harness.evaluate env=swebench agent=oracle.

agent=oracle replays the gold solution and must score 1.0, agent=nop submits at once and must score
0.0: together they validate an environment and its sandboxes. agent=policy measures a policy
(policy.path=FOLDER for weights of your own). `env.split` is the held-out split unless given.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from harness import composition, entry
from harness.config import Config
from harness.evaluation import Evaluation, evaluate
from harness.interrupt import run_async
from harness.parts import make_rollouts, open_parts
from harness.protocols import Trajectory, UsageError
from harness.validation import validate


def parse(arguments: Sequence[str]) -> Config:
    """The config of these overrides; without env.split it is the environment's held-out split."""
    config = composition.compose(list(arguments))
    if not any(a.startswith("env.split=") for a in arguments):
        config.env.split = config.env.eval_split
    validate(config)
    return config


async def measure(config: Config) -> tuple[Evaluation, dict[str, int]]:
    """Run the evaluation; every sandbox and process is ended on the way out."""
    judged = 0

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def record(trajectory: Trajectory) -> None:
        nonlocal judged
        judged += 1
        if judged % 32 == 0:
            say(f"{judged} samples judged")

    if config.clock.kind == "virtual":
        raise UsageError(
            f"env={config.env.name}: nothing is learnt in it that could be evaluated; take "
            "env=swebench or env=terminal_bench"
        )
    async with open_parts(config, f"{os.getpid()}-evaluate", None, say=say) as parts:
        rollouts = make_rollouts(config, parts, config.evaluation.temperature)
        tasks = parts.environment.tasks(config.env.split)[: config.evaluation.tasks]
        settings = config.evaluation
        result = await evaluate(
            rollouts, parts.clock, tasks, settings.samples_per_task, settings.seed, "", record
        )
    return result, dict(rollouts.infrastructure_errors)


def report(config: Config, result: Evaluation, errors: dict[str, int]) -> dict[str, Any]:
    return {
        "env": config.env.name,
        "dataset": config.env.dataset,
        "split": config.env.split,
        "agent": config.agent.name,
        "tasks": result.tasks,
        "samples_per_task": result.samples_per_task,
        "solve_rate": result.solve_rate,
        "standard_error": result.standard_error,
        "pass_at_k": result.pass_at_k,
        "lost": result.lost,
        "infrastructure_errors": errors,
    }


def show(line: dict[str, Any]) -> None:
    """A table on a terminal, JSON elsewhere."""
    if not sys.stdout.isatty():
        entry.closing_line(line)
        return
    from harness.display import print_evaluation

    print_evaluation(line, sys.stdout)


def evaluate_from_command_line() -> None:
    config = parse(sys.argv[1:])
    show(report(config, *run_async(measure(config))))


def main() -> int:
    return entry.guarded(evaluate_from_command_line, __doc__)


if __name__ == "__main__":
    sys.exit(main())
