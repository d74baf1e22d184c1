"""One update as a line of updates.csv."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from harness.accounting import Trained, engine_replicas, learner_ranks
from harness.batch import LiveBatch
from harness.objectives import ratios
from harness.objectives.grpo import Grpo
from harness.objectives.opd import reverse_kl
from harness.protocols import StepStats, TurnStats
from harness.timeline import Timeline, Window, idle_fraction, length_s, overlap_s, union

Row = dict[str, Any]
TURNS = tuple(TurnStats.__dataclass_fields__)


def times(timeline: Timeline, ranks: int, replicas: int, windows: Sequence[Window]) -> Row:
    """What engine and learner did in an update's own windows; `timeline` holds the update's
    intervals: what has none is idle, not unknown."""
    inside, whole_s = union(windows), length_s(union(windows))
    learner, engine = learner_ranks(ranks), engine_replicas(replicas)
    tracks = timeline.unions([*learner, *engine])  # once: a long update has a million intervals
    busy_s = {
        kind: sum(overlap_s(tracks[name], inside) for name in names)
        for kind, names in (("learner", learner), ("engine", engine))
    }
    idle = {
        kind: idle_fraction(busy_s[kind], whole_s * len(names))
        for kind, names in (("learner", learner), ("engine", engine))
    }
    return {
        "learner_busy_s": busy_s["learner"],
        "engine_busy_s": busy_s["engine"],
        "idle_learner": idle["learner"],
        "idle_engine": idle["engine"],
    }


def content(batch: LiveBatch, trained: Sequence[Trained], objective: Grpo) -> Row:
    """What was trained on: means over the surviving trajectories, times in seconds, staleness in
    learner versions over tokens."""
    kept = [t for g in batch.groups for t in g.trajectories]
    ages = [pair for t in trained for pair in t.ages]
    tokens = sum(n for _, n in ages)
    rewards = [r for r in (t.verdict_reward for t in kept) if r is not None]
    return {
        "sandbox_start_s": _mean([t.sandbox_start_s for t in kept]),
        "exec_s": _mean([turn.exec_s for t in kept for turn in t.turns]),
        "verify_s": _mean([t.verify_s for t in kept if t.end == "submit"]),
        "reward_mean": _mean(rewards),
        "reverse_kl_mean": reverse_kl(kept),
        "turns_mean": _mean([float(len(t.turns)) for t in kept]),
        "groups": " ".join(str(group.group) for group in batch.groups),
        "groups_degenerate": sum(not g.dropped and objective.degenerate(g) for g in batch.groups),
        "groups_dropped": sum(g.dropped for g in batch.groups),
        "trajectories": len(kept),
        "tokens_trained": tokens,
        "staleness_mean": sum(a * n for a, n in ages) / max(1, tokens),
        "staleness_max": max((a for a, _ in ages), default=0),
    }


def step(stats: StepStats) -> Row:
    return {
        "gradient_norm": stats.gradient_norm,
        "gradient_clipped": int(stats.clipped),
        "learning_rate": stats.learning_rate,
        **ratios.columns(stats.ratios),
        "ledger_buffers_peak": stats.ledger_buffers_peak,
        "ledger_bytes_peak": stats.ledger_bytes_peak,
        **{f"turns_{name}": getattr(stats.turns, name, None) for name in TURNS},
    }


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
