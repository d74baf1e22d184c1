"""What repeated runs say: intervals, paired differences, and how many seeds would settle it.

Scores are `scores_RT`: runs (seeds) x tasks, a run's share of solved samples of each task. Nothing
here invents an interval: one run has none. docs/results.md says which figure uses what.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000
MOST_SEEDS = 1000
Solved = Mapping[str, Sequence[bool]]
"""Task -> whether each of its judged samples was solved."""


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval; no interval where `runs` cannot give one."""

    value: float | None
    low: float | None = None
    high: float | None = None
    runs: int = 0

    @property
    def interval(self) -> tuple[float, float] | None:
        return (self.low, self.high) if self.low is not None and self.high is not None else None

    def map(self, by: Callable[[float], float]) -> Estimate:
        """The same figure on another scale (an increasing one)."""
        low, high = (None, None) if self.interval is None else map(by, self.interval)
        return Estimate(None if self.value is None else by(self.value), low, high, self.runs)


def t_interval(values: Sequence[float | None]) -> Estimate:
    """Mean over runs and its two-sided Student interval; the value alone for one run, and nothing
    where a run's figure is not known: the others are no sample of all."""
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values):
        return Estimate(None, runs=len(values))
    mean = statistics.fmean(known)
    if len(known) < 2:
        return Estimate(mean, runs=1)
    half = t_quantile(len(known) - 1) * statistics.stdev(known) / math.sqrt(len(known))
    return Estimate(mean, mean - half, mean + half, len(known))


def paired_ratio(first: Mapping[int, float], second: Mapping[int, float]) -> Estimate:
    """Geometric mean of first / second over the seeds that both have, with Student's interval in
    log space: a speed-up, where the figures are times."""
    return t_interval([math.log(first[s] / second[s]) for s in _common(first, second)]).map(
        math.exp
    )


def paired_differences(first: Mapping[int, float], second: Mapping[int, float]) -> Estimate:
    """Mean of second - first over the seeds that both have, with Student's interval."""
    return t_interval([second[s] - first[s] for s in _common(first, second)])


def _common(first: Mapping[int, Any], second: Mapping[int, Any]) -> list[int]:
    return sorted(first.keys() & second.keys())


def seeds_to_resolve(estimate: Estimate, null: float = 0.0) -> int | None:
    """How many seeds would tell this difference from `null`, if it and the spread between seeds
    stay what they are: the smallest n with t(n-1) s / sqrt(n) < |difference|. None where no
    interval says, where there is no difference, or beyond 1,000."""
    if estimate.value is None or estimate.interval is None:
        return None
    distance = abs(estimate.value - null)
    half = (estimate.interval[1] - estimate.interval[0]) / 2
    deviation = half * math.sqrt(estimate.runs) / t_quantile(estimate.runs - 1)
    for n in range(2, MOST_SEEDS + 1):
        if t_quantile(n - 1) * deviation / math.sqrt(n) < distance:
            return n
    return None


def verdict(estimate: Estimate, null: float = 0.0) -> str:
    """Whether the interval tells the figure from `null`, in words."""
    if estimate.value is None:
        return "not measured"
    if estimate.interval is None:
        return "one seed: no interval"
    if not estimate.interval[0] <= null <= estimate.interval[1]:
        return "resolved"
    n = seeds_to_resolve(estimate, null)
    if n is None:
        return f"not resolved; more than {MOST_SEEDS} seeds would be needed"
    return f"not resolved; about {n} seeds would be needed"


def iqm(scores: Any) -> float:
    """Interquartile mean: of the middle half of all runs' tasks (Agarwal et al. 2021, arXiv
    2108.13264)."""
    import numpy
    from scipy.stats import trim_mean

    return float(trim_mean(numpy.ravel(scores), 0.25))


def mean(scores: Any) -> float:
    import numpy

    return float(numpy.mean(scores))


def median(scores: Any) -> float:
    """The median over tasks of their means over runs."""
    import numpy

    return float(numpy.median(numpy.mean(scores, axis=0)))


STATISTICS: dict[str, Callable[[Any], float]] = {"mean": mean, "median": median, "IQM": iqm}


def bootstrap(
    scores_RT: np.ndarray,
    statistic: Callable[[Any], float],
    *,
    crossed: bool = True,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Percentile interval over runs and tasks. `crossed`: whole runs and whole tasks are drawn, so
    that what one training run has learnt is one draw for all its tasks. Otherwise stratified, as
    rliable does: tasks are drawn, and runs for each task by itself, which takes a run's tasks for
    independent. One run: no interval."""
    import numpy

    value = statistic(scores_RT)
    runs, tasks = scores_RT.shape
    if runs < 2:
        return Estimate(value, runs=runs)
    draw = numpy.random.default_rng(seed)
    found = numpy.empty(resamples)
    for i in range(resamples):
        of_tasks = draw.integers(tasks, size=tasks)
        of_runs = draw.integers(runs, size=(runs, 1 if crossed else tasks))
        found[i] = statistic(scores_RT[of_runs, of_tasks])
    edge = (1 - CONFIDENCE) / 2
    low, high = numpy.quantile(found, [edge, 1 - edge])
    return Estimate(value, float(low), float(high), runs)


def probability_of_improvement(first_RT: np.ndarray, second_RT: np.ndarray) -> float:
    """That a run of `second` beats one of `first` on a task drawn at random, ties counting half:
    the mean over tasks of the Mann-Whitney statistic / (runs x runs)."""
    import numpy

    more = (second_RT[:, None, :] > first_RT[None, :, :]).mean()
    same = (second_RT[:, None, :] == first_RT[None, :, :]).mean()
    return float(numpy.asarray(more + same / 2))


def improvement(
    first_RT: np.ndarray, second_RT: np.ndarray, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """`probability_of_improvement` with its crossed bootstrap interval: the same tasks are drawn
    for both, whole runs of each."""
    import numpy

    value = probability_of_improvement(first_RT, second_RT)
    runs = min(len(first_RT), len(second_RT))
    if runs < 2:
        return Estimate(value, runs=runs)
    draw = numpy.random.default_rng(seed)
    found = []
    for _ in range(resamples):
        tasks = draw.integers(first_RT.shape[1], size=first_RT.shape[1])
        one, other = (
            s[draw.integers(len(s), size=(len(s), 1)), tasks] for s in (first_RT, second_RT)
        )
        found.append(probability_of_improvement(one, other))
    edge = (1 - CONFIDENCE) / 2
    low, high = numpy.quantile(found, [edge, 1 - edge])
    return Estimate(value, float(low), float(high), runs)


@dataclass(frozen=True)
class Reached:
    """When a run's weights first reached a target: `at` is what they had cost (an upper bound: only
    marks are evaluated); where it never did, `at` is the last cost and `censored`."""

    at: float
    censored: bool


def time_to_target(curve: Sequence[tuple[float, float]], target: float) -> Reached | None:
    """Of (cost, solve rate) points in order; None without any."""
    if not curve:
        return None
    for cost, rate in curve:
        if rate >= target:
            return Reached(cost, censored=False)
    return Reached(curve[-1][0], censored=True)


def median_time(reached: Sequence[Reached]) -> float | None:
    """Kaplan and Meier's median: the first time by which half would have reached the target; None
    where too many never did to say."""
    from scipy.stats import CensoredData, ecdf

    if not reached or all(r.censored for r in reached):
        return None
    survival = ecdf(
        CensoredData(
            uncensored=[r.at for r in reached if not r.censored],
            right=[r.at for r in reached if r.censored],
        )
    ).sf
    below = [q for q, p in zip(survival.quantiles, survival.probabilities, strict=True) if p <= 0.5]
    return float(below[0]) if below else None


@dataclass(frozen=True)
class PairedDifference:
    """`second` less `first` in solve rate over the `tasks` that both have judged samples of;
    `unpaired` counts the others. The standard error is that of these tasks and samples: it says
    nothing about another training seed."""

    difference: float | None
    standard_error: float | None
    tasks: int
    unpaired: int


def paired_difference(first: Solved, second: Solved) -> PairedDifference:
    """Compare two evaluations of the same tasks, task by task: what makes a task hard for both
    drops out. None instead of a figure where there are too few tasks."""
    rates_1, rates_2 = (
        {t: statistics.fmean(s) for t, s in x.items() if s} for x in (first, second)
    )
    both = sorted(rates_1.keys() & rates_2.keys())
    differences = [rates_2[task] - rates_1[task] for task in both]
    enough = len(differences) > 1
    return PairedDifference(
        difference=statistics.fmean(differences) if differences else None,
        standard_error=(
            statistics.stdev(differences) / math.sqrt(len(differences)) if enough else None
        ),
        tasks=len(both),
        unpaired=len(rates_1.keys() ^ rates_2.keys()),
    )


def resolution(groups: Sequence[Sequence[float]]) -> float | None:
    """The smallest difference between two means that the seeds could tell from noise: two-sided
    95 %, Student's t on the spread between seeds, pooled over the groups. None where nothing
    repeats."""
    repeated = [g for g in groups if len(g) > 1]
    if len(repeated) < 2:
        return None
    freedom = sum(len(g) - 1 for g in repeated)
    pooled = sum(statistics.variance(g) * (len(g) - 1) for g in repeated) / freedom
    return t_quantile(freedom) * math.sqrt(2 * pooled / min(map(len, repeated)))


def t_quantile(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, freedom))
