"""Our statistics beside rliable's on shared inputs: tox -e rliable

rliable 1.2.0 does not work with pandas 3, so it has an environment of its own; results/stats.py
needs numpy and scipy alone. Point estimates must be equal; a bootstrap's edges differ by its random
draws, so both draw often and agree to half a point. Prints a Markdown table; exit 1 where one
differs.
"""

from __future__ import annotations

import sys

import numpy
from rliable import library, metrics

from results import stats

DRAWS = 20_000
EDGE = 0.005
OURS = {"mean": stats.mean, "median": stats.median, "IQM": stats.iqm}
THEIRS = {
    "mean": metrics.aggregate_mean,
    "median": metrics.aggregate_median,
    "IQM": metrics.aggregate_iqm,
}


def scores(seed: int, runs: int = 5, tasks: int = 48) -> numpy.ndarray:
    """Shares of two solved samples, tasks of different difficulty."""
    draw = numpy.random.default_rng(seed)
    hard = draw.beta(1.0, 1.5, size=tasks)
    return draw.binomial(2, hard, size=(runs, tasks)) / 2


def main() -> int:
    first, second = scores(0), scores(1)
    print("| statistic | ours | rliable |\n|---|---|---|")
    ok = True

    def row(name: str, ours: stats.Estimate, value: float, low: float, high: float) -> None:
        nonlocal ok
        assert ours.value is not None and ours.interval is not None
        print(f"| {name} | {ours.value:.4f} ({ours.low:.4f} to {ours.high:.4f}) | "
              f"{value:.4f} ({low:.4f} to {high:.4f}) |")  # fmt: skip
        edges = abs(ours.interval[0] - low), abs(ours.interval[1] - high)
        ok = ok and abs(ours.value - value) < 1e-12 and max(edges) < EDGE

    for name, theirs in THEIRS.items():
        found, intervals = library.get_interval_estimates(
            {"a": first},
            lambda x, f=theirs: numpy.array([f(x)]),
            task_bootstrap=True,
            reps=DRAWS,
            random_state=numpy.random.RandomState(0),
        )
        ours = stats.bootstrap(first, OURS[name], crossed=False, resamples=DRAWS)
        row(name, ours, float(found["a"][0]), *map(float, intervals["a"][:, 0]))
    value = float(metrics.probability_of_improvement(second, first))
    ours = stats.probability_of_improvement(first, second)
    print(f"| P(improvement) | {ours:.4f} | {value:.4f} |")
    return 0 if ok and abs(ours - value) < 1e-12 else 1


if __name__ == "__main__":
    sys.exit(main())
