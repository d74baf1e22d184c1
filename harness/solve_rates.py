"""What repeated samples of tasks say: pass@1 and its standard error, pass@k.

The tasks are the sample: all of a task's samples are one cluster, so that more samples of the same
tasks never make a figure look surer than those tasks can make it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

Solved = Mapping[str, Sequence[bool]]
"""Task -> whether each of its judged samples was solved."""


def solve_rate(solved: Solved) -> float | None:
    """pass@1: the mean over tasks of the share of solved samples; None without any."""
    rates = _rates(solved)
    return statistics.fmean(rates.values()) if rates else None


def standard_error(solved: Solved) -> float | None:
    """Of `solve_rate`, clustered by task; None for fewer than two tasks."""
    return _standard_error(list(_rates(solved).values()))


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Unbiased estimate, from `samples` of one task of which so many were solved, that at least one
    of k solves it: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374). In integers up to
    one division: no factor is rounded, none overflows. Raises ValueError outside 1 <= k <= n."""
    if not (0 <= solved <= samples and 1 <= k <= samples):
        raise ValueError(f"pass@{k} of {solved} solved out of {samples} samples is not defined")
    draws = math.comb(samples, k)
    return (draws - math.comb(samples - solved, k)) / draws


def passes(solved: Solved, samples_per_task: int) -> dict[int, float | None]:
    """k -> pass@k for k up to `samples_per_task`: the mean over the tasks with k judged samples or
    more (a task that lost some has no estimate for the largest k); None where no task has."""
    found: dict[int, float | None] = {}
    for k in range(1, samples_per_task + 1):
        of_tasks = [pass_at_k(len(s), sum(s), k) for s in solved.values() if len(s) >= k]
        found[k] = statistics.fmean(of_tasks) if of_tasks else None
    return found


def _rates(solved: Solved) -> dict[str, float]:
    return {task: statistics.fmean(map(float, s)) for task, s in solved.items() if s}


def _standard_error(clusters: Sequence[float]) -> float | None:
    if len(clusters) < 2:
        return None
    return statistics.stdev(clusters) / math.sqrt(len(clusters))
