"""Two schedules on the same recorded updates, in turn, in one process: the controlled comparison.

    python -m harness.paired replay=RUN/trajectories.jsonl updates=24 [a=schedule=sync
    b=schedule=stream]

Engine and learner are pinned to one core each; the engine decodes the recorded tokens at their real
cost, tool calls and verification take their recorded time. Every recorded update is played under A
and under B (A first on even updates, B first on odd ones), so that a machine whose speed drifts
drifts under both. Prints the paired ratio A/B of the update times with its 95 % interval.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import composition, entry
from harness.budget import Budget
from harness.cluster.worker import load
from harness.config import BudgetConfig, Config, flatten
from harness.interrupt import run_async
from harness.objectives.grpo import Grpo
from harness.parts import Parts, open_parts
from harness.protocols import UsageError
from harness.replay import Replay
from harness.timeline import Timeline
from harness.training import Row, Training
from harness.validation import validate

MAY_DIFFER = (
    "schedule.name",
    "schedule.target",
    "schedule.release",
    "schedule.chunk_tokens",
    "ledger.max_open_groups",
)
PINNED = ("cluster.pin_cores=true", "tracking=none")


def ratio_interval(a_s: Sequence[float], b_s: Sequence[float]) -> dict[str, float]:
    """Geometric mean of the paired ratios a/b and its two-sided 95 % Student interval in log
    space."""
    from scipy.stats import t

    logs = [math.log(a / b) for a, b in zip(a_s, b_s, strict=True)]
    n = len(logs)
    mean = math.fsum(logs) / n
    error = math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / (n - 1) / n)
    half = float(t.ppf(0.975, n - 1)) * error
    return {
        "ratio": math.exp(mean),
        "low_95": math.exp(mean - half),
        "high_95": math.exp(mean + half),
    }


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def play(configs: Sequence[Config], updates: int) -> list[list[Row]]:
    """Rows of every update, per config. The first recorded update is played once more, unmeasured,
    under each: allocators and caches are then warm for both."""
    rows: list[list[Row]] = [[] for _ in configs]
    with tempfile.TemporaryDirectory(prefix="thundersync-") as folder:
        async with open_parts(configs[0], "paired", Path(folder), say=say) as parts:
            replay = Replay(
                Path(str(configs[0].replay)),
                parts.engine,
                parts.clock,
                configs[0].rollout.temperature,
            )
            version = 0
            for config in configs:
                version = (await _update(config, parts, replay, 0, version))["version"]
            for update in range(updates):
                order = range(len(configs)) if update % 2 == 0 else reversed(range(len(configs)))
                for which in order:
                    row = await _update(configs[which], parts, replay, update, version)
                    version = row["version"]
                    rows[which].append(row)
                say(f"update {update + 1}/{updates}")
    return rows


async def _update(config: Config, parts: Parts, replay: Replay, update: int, version: int) -> Row:
    """One recorded update under one schedule; weights and optimizer go on from the last one."""
    rows: list[Row] = []
    training = Training(
        learner=parts.learner,
        engine=parts.engine,
        objective=Grpo(config.objective, config.rollout.group_size),
        budget=Budget(BudgetConfig("updates", 1), devices=2, clock=parts.clock),
        clock=parts.clock,
        timeline=Timeline(parts.clock.origin_s),
        start_batch=_at(replay, update),
        take_intervals=replay.take_intervals,
        tasks=parts.environment.tasks(config.env.split),
        groups_per_batch=config.rollout.groups_per_batch,
        chunk_tokens=config.schedule.chunk_tokens,
        seed=config.seed,
        version=version,
        on_update=rows.append,
        on_trajectory=lambda trajectory, batch: None,
    )
    await load(config.schedule.target)(config).run(training)
    return rows[0]


def _at(replay: Replay, update: int) -> Callable[..., Any]:
    def start(index: int, version: int, tasks: Any, seed: int, record: Any) -> Any:
        return replay.start(update, version, tasks, seed, record)

    return start


def report(configs: Sequence[Config], rows: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """What the comparison says, ready for JSON."""

    def mean(which: int, column: str) -> float:
        return math.fsum(row[column] for row in rows[which]) / len(rows[which])

    names = [f"{c.schedule.name}:{c.schedule.release}" for c in configs]
    columns = ("per_update_s", "rollout_s", "tail_s", "idle_learner", "ledger_buffers_peak")
    times = [[row["per_update_s"] for row in r] for r in rows]
    return {
        "replay": str(configs[0].replay),
        "updates": len(rows[0]),
        "a": {"schedule": names[0], **{c: mean(0, c) for c in columns}},
        "b": {"schedule": names[1], **{c: mean(1, c) for c in columns}},
        "per_update_s_a_over_b": ratio_interval(*times),
    }


def parse(arguments: Sequence[str]) -> tuple[list[Config], int]:
    """`a=` and `b=` give each schedule's overrides (comma-separated); the rest is for both."""
    options = {"a": "schedule=sync", "b": "schedule=stream", "updates": "24"}
    shared: list[str] = list(PINNED)
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in options:
            options[key] = value
        else:
            shared.append(argument)
    if not options["updates"].isdigit() or int(options["updates"]) < 2:
        raise UsageError(f"updates={options['updates']}: a whole number of at least 2")
    configs = [composition.compose(shared + options[k].split(",")) for k in ("a", "b")]
    for config in configs:
        validate(config)
        if config.replay is None:
            raise UsageError("replay=null: give a run's trajectories.jsonl to play back")
    theirs = dict(flatten(configs[1]))
    for key, value in flatten(configs[0]):
        if value != theirs[key] and key not in MAY_DIFFER:
            raise UsageError(
                f"{key}={value} under a, {theirs[key]} under b: both play on one engine and one "
                f"learner; only {', '.join(MAY_DIFFER)} may differ"
            )
    return configs, int(options["updates"])


def compare_from_command_line() -> None:
    configs, updates = parse(sys.argv[1:])
    rows = run_async(play(configs, updates))
    entry.closing_line(report(configs, rows))


def main() -> int:
    return entry.guarded(compare_from_command_line)


if __name__ == "__main__":
    sys.exit(main())
