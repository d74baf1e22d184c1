"""Schedules on the same recorded updates, in turn, in one process: the controlled comparison.

    python -m harness.paired replay=RUN/trajectories.jsonl updates=24 [a=schedule=sync
    b=schedule=stream,schedule.release=group c=schedule=stream,schedule.release=auto ...]
    [workload=recorded|long_verification|long_tool_calls|correlated_groups]

Engine and learner are pinned to cores of their own (cluster.pin_cores=false: they are not, and the
report says so); the engine decodes the recorded tokens at their real cost, tool calls and
verification take their recorded time, or that of the workload. Every recorded update is played
under every variant, in an order that is rotated from update to update, so that a machine whose
speed drifts drifts under all. `updates` is 24, or as many as were recorded whole, and never more: a
repeat tells nothing new, and the interval takes updates for independent. Prints what each variant
took and the paired ratios of the first variant's update times and tails to its own, with the 95 %
interval.

What turns come to for a distillation, against whole trajectories and the synchronous schedule:

    python -m harness.run objective=opd schedule=sync budget.limit=12 hydra.run.dir=RUN
    python -m harness.paired objective=opd replay=RUN/trajectories.jsonl workload=long_tool_calls \\
        a=schedule=sync b=schedule=stream,schedule.release=submit \\
        c=schedule=stream,schedule.release=turn
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environments.sandbox.ownership import folder_prefix
from harness import entry
from harness.batch import Begin
from harness.budget import Budget
from harness.cluster.worker import load
from harness.config import BudgetConfig, Config
from harness.interrupt import run_async
from harness.objectives import opd
from harness.overlap import overlap, run_efficiency
from harness.paired_options import parse, recording
from harness.parts import Parts, open_parts
from harness.protocols import Group, Schedule, Sink, Task
from harness.replay import Replay
from harness.teachers.select import make_scoring
from harness.timeline import Timeline
from harness.timings import History
from harness.training import Training
from harness.update_row import Row
from harness.workload import WORKLOADS, Batches

COLUMNS = ("per_update_s", "rollout_s", "tail_s", "idle_learner", "idle_engine")


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


class Variant:
    """One schedule of the comparison: what it keeps from update to update, and its rows."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.schedule: Schedule = load(config.schedule.target)(config)
        self.objective = opd.make(config.objective, config.rollout.group_size)
        self.timings = History(separate=self.objective.regularised)
        self.rows: list[Row] = []

    async def update(self, parts: Parts, replay: Replay, update: int, version: int) -> Row:
        """One recorded update; weights and optimizer go on from the last one, whoever made it."""
        config, rows = self.config, list[Row]()
        training = Training(
            learner=parts.learner,
            engine=parts.engine,
            objective=self.objective,
            budget=Budget(BudgetConfig("updates", 1), devices=2, clock=parts.clock),
            clock=parts.clock,
            timeline=Timeline(parts.clock.origin_s),
            begin=_at(replay, update * config.rollout.groups_per_batch),
            take_intervals=replay.take_intervals,
            tasks=parts.environment.tasks(config.env.split),
            groups_per_batch=config.rollout.groups_per_batch,
            chunk_tokens=config.schedule.chunk_tokens,
            seed=config.seed,
            version=version,
            ranks=config.learner.ranks,
            release=self.schedule.release,
            group_size=config.rollout.group_size,
            timings=self.timings,
            on_update=rows.append,
            on_trajectory=lambda trajectory, batch: None,
        )
        await self.schedule.run(training)
        return rows[0]


def _at(replay: Replay, first: int) -> Begin:
    """The recording from its group `first` on."""

    def begin(number: int, task: Task, seed: int, sink: Sink) -> Group:
        return replay.begin(first + number, task, seed, sink)

    return begin


async def play(variants: Sequence[Variant], recorded: Batches, updates: int, workload: str) -> None:
    """Fill the variants' rows with the first `updates` recorded updates. The first one is played
    once more, unmeasured, under each: allocators and caches are then warm for all."""
    config = learners_config(variants)
    with tempfile.TemporaryDirectory(prefix=folder_prefix("paired")) as folder:
        async with open_parts(config, "paired", Path(folder), say=say) as parts:
            replay = Replay(
                recorded, parts.engine, parts.clock, config.rollout.temperature, workload,
                config.seed, parts.clock.origin_s, make_scoring(config, parts.teacher, parts.clock),
            )  # fmt: skip
            version = 0
            for variant in variants:
                version = (await variant.update(parts, replay, 0, version))["version"]
            for update in range(updates):
                turn = update % len(variants)
                for variant in [*variants[turn:], *variants[:turn]]:
                    row = await variant.update(parts, replay, update, version)
                    version = row["version"]
                    variant.rows.append(row)
                use_measured_costs(variants)
                say(f"update {update + 1}/{updates}")


def learners_config(variants: Sequence[Variant]) -> Config:
    """Whose settings the one learner is started with: one that takes turns, if any does."""
    by_release = {v.config.schedule.release: v.config for v in reversed(variants)}
    return by_release.get("turn") or by_release.get("auto") or variants[0].config


def use_measured_costs(variants: Sequence[Variant]) -> None:
    """Where the synchronous schedule has just played the same update, what its passes took is what
    they cost: exact, where a fit is an estimate."""
    synchronous = [v for v in variants if v.schedule.name == "sync"]
    if not synchronous:
        return
    cost_s = synchronous[0].timings.updates[-1].measured_s()
    for variant in variants:
        costs = variant.timings.costs()
        fold_s = 0.0 if costs is None else costs.fold_s
        found = overlap(variant.timings.updates[-1], cost_s, fold_s)
        if found is not None:
            variant.rows[-1] |= found.row()


def _mean_known(rows: Sequence[Row], column: str) -> float | None:
    known = [row[column] for row in rows if row[column] is not None]
    return statistics.fmean(known) if known else None


def describe(variant: Variant, first: Variant) -> dict[str, Any]:
    """What one variant did over the updates; the ratio is the first's update time over its own."""
    rows = variant.rows
    figures = {c: statistics.fmean(row[c] for row in rows) for c in COLUMNS}
    streams = variant.schedule.release not in (None, "batch")
    return {
        "schedule": variant.schedule.name,
        "release": variant.schedule.release,
        **figures,
        "overlap_efficiency": run_efficiency(rows) if streams else None,
        "decide_s": _mean_known(rows, "decide_s"),
        "release_played": dict(Counter(str(row["release"]) for row in rows)),
        "ledger_buffers_peak": max(row["ledger_buffers_peak"] for row in rows),
        "first_over_this": _ratio(variant, first, "per_update_s"),
        "tail_first_over_this": _ratio(variant, first, "tail_s"),
    }


def _ratio(variant: Variant, first: Variant, column: str) -> dict[str, float] | None:
    """None for the first variant itself."""
    if variant is first:
        return None
    return ratio_interval(
        [row[column] for row in first.rows], [row[column] for row in variant.rows]
    )


def report(variants: Mapping[str, Variant], workload: str, recorded_updates: int) -> dict[str, Any]:
    """What the comparison says, ready for JSON; the recording had `recorded_updates`."""
    first = next(iter(variants.values()))
    known = [u.arrival_correlation for u in first.timings.updates]
    correlations = [c for c in known if c is not None]
    return {
        "replay": str(first.config.replay),
        "workload": workload,
        "pinned": first.config.cluster.pin_cores,
        "workload_says": WORKLOADS[workload].says,
        "arrival_correlation": statistics.fmean(correlations) if correlations else None,
        "updates": len(first.rows),
        "recorded_updates": recorded_updates,
        "variants": {letter: describe(v, first) for letter, v in variants.items()},
    }


def table(found: Mapping[str, Any]) -> list[str]:
    """The report in 100 columns, for people."""
    lines = [
        f"{found['updates']} updates, workload={found['workload']}: {found['workload_says']}; "
        f"arrival correlation {_number(found['arrival_correlation'], '.2f')}; "
        f"pinned: {str(found['pinned']).lower()}",
        f"{'':14}{'update':>8}{'rollout':>8}{'tail':>7}{'overlap':>8}{'idle learner':>13}"
        f"{'buffers':>8}  {'first / this':<22}played at",
    ]
    for letter, v in found["variants"].items():
        interval = _interval(v["first_over_this"])
        played = ", ".join(f"{rung} x{n}" for rung, n in v["release_played"].items())
        if v["decide_s"] is not None:
            played += f", decided in {v['decide_s']:.3f} s"
        lines.append(
            f"{letter} {v['schedule'] + ':' + str(v['release']):<12}{v['per_update_s']:8.2f}"
            f"{v['rollout_s']:8.2f}{v['tail_s']:7.2f}{_number(v['overlap_efficiency'], '.2f'):>8}"
            f"{v['idle_learner']:13.0%}{v['ledger_buffers_peak']:8d}  {interval:<22}{played}"
        )
    tails = ", ".join(
        f"{letter} {_interval(v['tail_first_over_this'])}"
        for letter, v in found["variants"].items()
    )
    return [*lines, f"tail, first / this: {tails}"]


def _interval(ratio: Mapping[str, float] | None) -> str:
    if ratio is None:
        return "1"
    return f"{ratio['ratio']:.3f} ({ratio['low_95']:.3f}-{ratio['high_95']:.3f})"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def compare_from_command_line() -> None:
    configs, updates, workload = parse(sys.argv[1:])
    recorded, updates = recording(next(iter(configs.values())), updates)
    variants = {letter: Variant(config) for letter, config in configs.items()}
    run_async(play(list(variants.values()), recorded, updates, workload))
    found = report(variants, workload, len(recorded))
    for line in table(found):
        say(line)
    entry.closing_line(found)


def main() -> int:
    return entry.guarded(compare_from_command_line, __doc__)


if __name__ == "__main__":
    sys.exit(main())
