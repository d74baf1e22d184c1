"""A workload from recorded lives: log-normal draws by moments, what a group shares by variance.

A draw's sigma is that of the logarithms, its median such that the mean is the recorded one: time
adds up. What the limits cut is not seen, so that turns are fitted through them: their draw is the
one that gives the recorded mean, and lets the recorded share reach the limit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import root_scalar

from environments.simulated.workload import DrawnWorkload, Limits, Plan
from environments.simulated.workload_config import (
    DifficultyConfig,
    LogNormalConfig,
    WorkloadConfig,
)
from harness.costs.recording import Life
from harness.protocols import UsageError

Place = tuple[int, int]  # run, group
DRAWN_GROUPS = 250  # of 8 lives, to see what limits leave of a draw
SMALLEST = 1e-4  # seconds or tokens: what is nothing has no logarithm


def correlation(samples: Sequence[Sequence[float]]) -> float:
    """Intraclass correlation of groups, one-way ANOVA, cut to [0, 1]; 0 where it cannot be told."""
    samples = [sample for sample in samples if sample]
    count, groups = sum(map(len, samples)), len(samples)
    if groups < 2 or count <= groups:
        return 0.0
    mean = statistics.fmean(value for sample in samples for value in sample)
    centres = [statistics.fmean(sample) for sample in samples]
    between = sum(len(x) * (c - mean) ** 2 for x, c in zip(samples, centres, strict=True))
    within = sum((v - c) ** 2 for x, c in zip(samples, centres, strict=True) for v in x)
    size = (count - sum(len(x) ** 2 for x in samples) / count) / (groups - 1)
    between, within = between / (groups - 1), within / (count - groups)
    scale = between + (size - 1) * within
    return min(1.0, max(0.0, (between - within) / scale)) if scale else 0.0


def log_normal(groups: Mapping[Place, Sequence[float]]) -> LogNormalConfig:
    """Mean and spread of the recorded values, and what their groups share."""
    values = [v for sample in groups.values() for v in sample if v > SMALLEST]
    if len(values) < 2:
        return LogNormalConfig(values[0] if values else 0.0)
    sigma = statistics.pstdev([math.log(v) for v in values])
    everything = [v for sample in groups.values() for v in sample]  # zeros count in the mean
    median = statistics.fmean(everything) / math.exp(sigma**2 / 2)
    logs = [[math.log(v) for v in sample if v > SMALLEST] for sample in groups.values()]
    return LogNormalConfig(median, sigma, correlation(logs))


def grouped(
    lives: Sequence[Life], values: Callable[[Plan], Sequence[float]]
) -> dict[Place, list[float]]:
    """The values of each group's lives."""
    found: dict[Place, list[float]] = {}
    for life in lives:
        found.setdefault((life.run, life.group), []).extend(values(life.plan))
    return found


VALUES: dict[str, Callable[[Plan], Sequence[float]]] = {
    "prompt_tokens": lambda plan: [float(plan.prompt_tokens)],
    "turns": lambda plan: [float(len(plan.turns))],
    "action_tokens": lambda plan: [float(turn.action_tokens) for turn in plan.turns],
    # After the last action nothing is read, and a submission runs no command.
    "observation_tokens": lambda plan: [float(t.observation_tokens) for t in plan.turns[:-1]],
    "tool_s": lambda plan: [t.tool_s for t in plan.turns if t.tool_s or plan.end != "submit"],
    "start_s": lambda plan: [plan.start_s],
    "verify_s": lambda plan: [plan.verify_s] if plan.end == "submit" else [],
}


def fit(lives: Sequence[Life], limits: Limits, measured: str) -> WorkloadConfig:
    """A workload whose lives under `limits` are the recorded ones' equals in the mean. Raises
    UsageError where there are none."""
    if not lives:
        raise UsageError("runs: no trajectory with a reward; give runs with updates")
    config = WorkloadConfig(name="calibrated")
    for name, values in VALUES.items():
        setattr(config, name, log_normal(grouped(lives, values)))
    config.difficulties = _difficulties(lives)
    config.reward_icc = _reward_correlation(lives)
    config.failed_turns_factor = _failed_factor(lives)
    config.long_actions = _long_actions(config, lives, limits)
    config.sources = dict.fromkeys(
        (*VALUES, "difficulties.share", "difficulties.success", "difficulties.turns_factor",
         "reward_icc", "limits"), measured,
    )  # fmt: skip
    wanted = statistics.fmean(len(life.plan.turns) for life in lives)
    config.turns = _uncut(config, lives, limits, wanted)
    return _through_limits(config, limits, wanted)


def drawn_lives(config: WorkloadConfig, limits: Limits) -> list[Plan]:
    """Lives of many tasks, for what a workload comes to."""
    workload = DrawnWorkload(config, limits)
    return [workload.plan(task, task, i, 0) for task in range(DRAWN_GROUPS) for i in range(8)]


def _uncut(
    config: WorkloadConfig, lives: Sequence[Life], limits: Limits, wanted: float
) -> LogNormalConfig:
    """The draw of turns whose mean under the turn limit is `wanted`, and of which as many reach it
    as were recorded; as it was where none did. What classes spread is taken off its sigma."""
    recorded = config.turns
    reached = statistics.fmean(life.plan.end == "turn_limit" for life in lives)
    if not 0 < reached < 1:
        return recorded
    normal = statistics.NormalDist()
    quantile, top = normal.inv_cdf(1 - reached), math.log(limits.max_turns + 0.5)

    def excess(sigma: float) -> float:
        mean = top - quantile * sigma
        more = (
            1 - normal.cdf((math.log(k + 0.5) - mean) / sigma) for k in range(1, limits.max_turns)
        )
        return 1 + sum(more) - wanted

    low, high = 0.05, 4.0
    if excess(low) * excess(high) > 0:
        return recorded
    sigma = float(root_scalar(excess, bracket=(low, high), method="brentq").root)
    logs = [math.log(d.turns_factor) for d in config.difficulties.values()]
    shares = [d.share for d in config.difficulties.values()]
    mean = sum(s * x for s, x in zip(shares, logs, strict=True))
    spread = sum(s * (x - mean) ** 2 for s, x in zip(shares, logs, strict=True))
    own = math.sqrt(max(0.0, sigma**2 - spread))
    return LogNormalConfig(math.exp(top - quantile * sigma), own, recorded.icc)


def _through_limits(config: WorkloadConfig, limits: Limits, wanted: float) -> WorkloadConfig:
    """With the median of turns that gives `wanted` turns on average, if one does."""

    def scaled(factor: float) -> WorkloadConfig:
        turns = replace(config.turns, median=config.turns.median * factor)
        return replace(config, turns=turns)

    def excess(log_factor: float) -> float:
        lives = drawn_lives(scaled(math.exp(log_factor)), limits)
        return statistics.fmean(len(plan.turns) for plan in lives) - wanted

    low, high = math.log(0.25), math.log(4.0)
    if excess(low) > 0 or excess(high) < 0:
        return config
    found = root_scalar(excess, bracket=(low, high), method="brentq", xtol=0.005)
    return scaled(math.exp(found.root))


def _long_actions(config: WorkloadConfig, lives: Sequence[Life], limits: Limits) -> str:
    """Whether a life ends with an action that is too long: a log-normal tail can be heavier than
    the policy's. What comes closer to the recorded share of such ends (cut: none)."""
    recorded = statistics.fmean(life.plan.end == "token_limit" for life in lives)
    drawn = statistics.fmean(plan.end == "token_limit" for plan in drawn_lives(config, limits))
    return "end" if abs(drawn - recorded) < recorded else "cut"


def _difficulties(lives: Sequence[Life]) -> dict[str, DifficultyConfig]:
    classes: dict[str, list[Plan]] = {}
    for life in lives:
        classes.setdefault(life.plan.difficulty, []).append(life.plan)
    overall = statistics.fmean(math.log(max(1, len(life.plan.turns))) for life in lives)
    found = {}
    for name, plans in sorted(classes.items()):
        submitted = [plan.reward for plan in plans if plan.end == "submit"]
        turns = statistics.fmean(math.log(max(1, len(plan.turns))) for plan in plans)
        found[name] = DifficultyConfig(
            share=len(plans) / len(lives),
            success=min(1.0, max(0.0, statistics.fmean(submitted))) if submitted else 0.0,
            turns_factor=math.exp(turns - overall),
        )
    return found


def _reward_correlation(lives: Sequence[Life]) -> float:
    """Inside the groups of a class, over submitted lives, weighted by their number."""
    total = weight = 0.0
    for name in {life.plan.difficulty for life in lives}:
        own = [x for x in lives if x.plan.difficulty == name and x.plan.end == "submit"]
        groups = grouped(own, lambda plan: [plan.reward])
        total += len(own) * correlation(list(groups.values()))
        weight += len(own)
    return total / weight if weight else 0.0


def _failed_factor(lives: Sequence[Life]) -> float:
    """Turns of submitted lives without a reward over those with one, in the logarithm's mean."""
    logs: dict[bool, list[float]] = {True: [], False: []}
    for life in lives:
        if life.plan.end == "submit":
            logs[life.plan.reward > 0].append(math.log(max(1, len(life.plan.turns))))
    if not (logs[True] and logs[False]):
        return 1.0
    return math.exp(statistics.fmean(logs[False]) - statistics.fmean(logs[True]))


def summary(plans: Sequence[Plan]) -> dict[str, float]:
    """Means of what lives are made of, for a comparison of recorded with drawn ones."""
    sums = {name: [v for plan in plans for v in values(plan)] for name, values in VALUES.items()}
    found = {name: float(np.mean(values)) if values else 0.0 for name, values in sums.items()}
    tokens = [plan.tokens for plan in plans]
    return found | {
        "tokens": statistics.fmean(tokens),
        "tokens, 95th percentile": float(np.percentile(tokens, 95)),
        "reward": statistics.fmean(plan.reward for plan in plans),
        "submitted": statistics.fmean(plan.end == "submit" for plan in plans),
    }
