"""From what happened to summary.json, and from an update's row to tracked metrics."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from harness import accounting
from harness.budget import uncounted_tokens
from harness.cluster.devices import devices
from harness.config import Config
from harness.evaluation import Evaluation
from harness.outcomes import Outcomes
from harness.overlap import run_efficiency
from harness.peers import peers
from harness.records import blank_summary
from harness.timeline import Timeline, Window
from harness.training import Training
from harness.update_row import Row

_METRICS = {
    "per_update_s": "time/per_update_s",
    "rollout_s": "time/rollout_s",
    "tail_s": "time/tail_s",
    "decide_s": "time/decide_s",
    "learner_busy_s": "time/learner_busy_s",
    "engine_busy_s": "time/engine_busy_s",
    "sandbox_start_s": "time/sandbox_start_s",
    "exec_s": "time/exec_s",
    "verify_s": "time/verify_s",
    "idle_learner": "idle/learner",
    "idle_engine": "idle/engine",
    "staleness_mean": "staleness/mean",
    "staleness_max": "staleness/max",
    "reward_mean": "reward/mean",
    "reverse_kl_mean": "distillation/reverse_kl_mean",
    "groups_degenerate": "reward/groups_degenerate",
    "groups_dropped": "reward/groups_dropped",
    "turns_mean": "tokens/turns_mean",
    "tokens_generated": "tokens/generated",
    "tokens_trained": "tokens/trained",
    "gradient_norm": "learner/gradient_norm",
    "learning_rate": "learner/learning_rate",
    "ratio_mean": "correction/ratio_mean",
    "ratio_max": "correction/ratio_max",
    "ratio_outside_fraction": "correction/outside_fraction",
    "effective_sample_fraction": "correction/effective_sample_fraction",
    "ledger_buffers_peak": "ledger/buffers_peak",
    "ledger_bytes_peak": "ledger/bytes_peak",
    "turns_retained_tokens": "turns/retained_tokens",
    "turns_rerun_tokens": "turns/rerun_tokens",
    "turns_fallbacks": "turns/fallbacks",
    "turns_live_bytes_peak": "turns/live_bytes_peak",
    "budget_spent": "budget/spent",
    "gradient_relative_error": "parity/gradient_relative_error",
    "control_relative_error": "parity/control_relative_error",
    "parameter_gap": "parity/parameter_gap",
    "control_parameter_gap": "parity/control_parameter_gap",
    "overlap_efficiency": "overlap/efficiency",
    "t_star_s": "overlap/t_star_s",
    "t_sync_s": "overlap/t_sync_s",
    "t_s": "overlap/t_s",
    "update": "update",
}

_MEANS = ("per_update_s", "rollout_s", "tail_s", "decide_s", "verify_s", "sandbox_start_s")


def metrics(row: Row) -> dict[str, Any]:
    """An update's row under the tracker's `group/name` keys."""
    return {name: row.get(column) for column, name in _METRICS.items()}


def _mean(rows: list[Row], column: str) -> float | None:
    values = [row[column] for row in rows if row[column] is not None]
    return statistics.fmean(values) if values else None


def summarise(
    config: Config,
    status: str,
    *,
    training: Training | None,
    evaluations: Mapping[str, Evaluation],
    timeline: Timeline,
    provider: Any,
    errors: Mapping[str, int],
    outcomes: Outcomes,
    times: Mapping[str, float | None],
) -> dict[str, Any]:
    """summary.json (summary.schema.json), from whatever part of the run there was."""
    summary = blank_summary(config)
    summary["status"] = status
    summary["time"].update(times)
    summary["infrastructure_errors"] = dict(errors)
    summary["agent_failures"] = dict(outcomes.agent_failures)
    summary["integrity"] = dict(outcomes.integrity)
    if provider is not None:
        summary["sandbox"] = provider.kind
        summary["sandbox_why"] = provider.why
        summary["sandboxes"] = dataclasses.asdict(provider.counters)
    elif config.replay is not None:
        summary["sandbox"] = "replayed"
        summary["sandbox_why"] = f"recorded times of {config.replay}"
    for name, evaluation in evaluations.items():
        if name not in ("initial", "final"):
            continue  # of a mark: in the curve
        summary["accuracy"]["pass_at_k"][name] = evaluation.pass_at_k
        summary["accuracy"] |= {
            name: evaluation.solve_rate,
            f"{name}_standard_error": evaluation.standard_error,
            f"{name}_lost": evaluation.lost,
            "tasks": evaluation.tasks,
        }
    if training is not None:
        _add_training(summary, config, training, timeline)
    return summary


def _distillation(
    config: Config, rows: Sequence[Row], timeline: Timeline, windows: Sequence[Window]
) -> dict[str, Any]:
    """Who taught, and the mean reverse KL per token of the first and the last update."""
    teacher = timeline.resources("teacher")
    return {
        "teacher": config.teacher.name,
        "top_k": config.objective.top_k,
        "task_weight": config.objective.task_weight,
        "reverse_kl": {
            "first": rows[0]["reverse_kl_mean"] if rows else None,
            "last": rows[-1]["reverse_kl_mean"] if rows else None,
        },
        "teacher_busy_s": timeline.busy_s(teacher, windows),
        "teacher_idle": timeline.idle_fraction(teacher, windows),
    }


def _segments(config: Config, rows: Sequence[Row]) -> dict[str, Any]:
    """What turn gradients came to: trajectories begun while they ran, inputs whose graphs were kept
    and inputs that were run again, and where memory did not allow what was meant."""
    taken = [row for row in rows if row.get("turns_trajectories") is not None]
    sums = ("trajectories", "retained_tokens", "rerun_tokens", "fallbacks")
    return {
        "way": config.segments.way,
        "max_live_bytes": config.segments.max_live_bytes,
        **{name: sum(row[f"turns_{name}"] for row in taken) for name in sums},
        "first_fallback": next(filter(None, (row["turns_fallback"] for row in taken)), None),
        "live_bytes_peak": max(row["turns_live_bytes_peak"] for row in taken),
    }


def released(rows: Sequence[Row]) -> dict[str, Any]:
    """What `release=auto` came to: `release_chosen` is the rung that most updates were played at
    (of several, the last played), `release_why` the reason its last update had, `release_updates`
    how many updates each rung had."""
    played = Counter(row["release"] for row in rows)
    most = max(played.values())
    chosen = next(row for row in reversed(rows) if played[row["release"]] == most)
    return {
        "release_chosen": chosen["release"],
        "release_why": chosen["release_why"],
        "release_updates": dict(played),
    }


def _add_training(
    summary: dict[str, Any], config: Config, training: Training, timeline: Timeline
) -> None:
    rows, counters = training.rows, training.budget.counters
    learner, engine = timeline.resources("learner"), timeline.resources("engine")
    uncounted = None  # known once everything has been drained
    if summary["status"] == "finished":
        uncounted = uncounted_tokens(timeline.intervals, counters.tokens)
    summary["budget"] |= {
        "spent": training.budget.spent,
        "discarded": training.budget.discarded | {"tokens_not_counted": uncounted},
        "warning": training.budget.without_update(),
    }
    summary["updates"] = counters.updates
    summary["trajectories"] = counters.trajectories
    summary["trajectories_lost"] = training.recorder.lost
    summary["devices"] = dataclasses.asdict(devices(config))
    summary["groups_discarded"] = {k: dict(v) for k, v in training.recorder.discarded.items()}
    summary["tokens_generated"] = counters.tokens
    summary["tokens_trained"] = training.tokens_trained
    summary["time"] |= {name: _mean(rows, name) for name in _MEANS} | {
        "training_s": training.budget.elapsed_s,
        "parity_s": counters.paused_s.get("parity", 0.0),
        "snapshot_s": counters.paused_s.get("snapshot", 0.0),
        "checkpoint_s": counters.paused_s.get("checkpoint", 0.0),
        "learner_busy_s": timeline.busy_s(learner, training.windows),
        "engine_busy_s": timeline.busy_s(engine, training.windows),
    }
    summary["idle"] = accounting.idle(config, timeline, training.windows)
    summary["resources"] = accounting.resources(config, timeline, training.windows)
    summary["staleness"] = accounting.staleness(training.ages, accounting.bound(config))
    summary["peers"] = peers(timeline, training.ranks, training.windows, training.ages)
    summary["reward"] = {
        "first": rows[0]["reward_mean"] if rows else None,
        "last": rows[-1]["reward_mean"] if rows else None,
    }
    if config.objective.name == "opd":
        summary["distillation"] = _distillation(config, rows, timeline, training.windows)
    summary["parity"] = training.parity.summary()
    if config.schedule.release == "auto" and rows:
        summary |= released(rows)
    if any(row.get("turns_trajectories") is not None for row in rows):
        summary["segments"] = _segments(config, rows)
    if config.schedule.name == "stream":
        summary["overlap_efficiency"] = run_efficiency(rows)
        summary["ledger"] = {
            "form": config.ledger.form,
            "ranks": config.learner.ranks,
            "buffers_peak": max((row["ledger_buffers_peak"] for row in rows), default=0),
            "bytes_peak": max((row["ledger_bytes_peak"] for row in rows), default=0),
        }
