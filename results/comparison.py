"""Runs of one comparison, row by row: who is averaged with whom, and who is paired with whom."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from results import stats
from results.load import check_comparable, labels, name, shared_settings
from results.runs import Run
from results.stats import Estimate

if TYPE_CHECKING:
    import numpy

Figure = Callable[[Run], float | None]
BASELINE = "sync"


@dataclass(frozen=True)
class Row:
    """The runs that differ in their seed alone."""

    label: str
    budget: tuple[str, float]
    runs: tuple[Run, ...]

    @property
    def ran_on(self) -> str:
        return "; ".join(sorted({run.ran_on for run in self.runs}))

    @property
    def virtual(self) -> bool:
        return any(run.virtual for run in self.runs)

    def values(self, of: Figure) -> list[float | None]:
        return [of(run) for run in self.runs]

    def estimate(self, of: Figure) -> Estimate:
        return stats.t_interval(self.values(of))

    def scores(self, phases: Sequence[str] | None = None) -> numpy.ndarray | None:
        """Runs x tasks: the share of solved samples, over the tasks that every run has, in the
        final evaluation or in one phase for each run; None where there is none."""
        import numpy

        phases = phases or ["final"] * len(self.runs)
        rates = [run.rates(phase) for run, phase in zip(self.runs, phases, strict=True)]
        tasks = sorted(set.intersection(*map(set, rates))) if rates else []
        return numpy.array([[r[t] for t in tasks] for r in rates]) if tasks else None


class Comparison:
    """Rows by budget, the baseline first. Raises ValueError where the runs are no comparison."""

    def __init__(
        self, runs: Sequence[Run], swept: Iterable[str] = (), baseline: str = BASELINE
    ) -> None:
        if not runs:
            raise ValueError("no finished run to compare")
        check_comparable(runs, swept)
        names = {name(run) for run in runs}
        if baseline not in {BASELINE, *names}:
            raise ValueError(f"baseline={baseline}: there are {'; '.join(sorted(names))}")
        self.runs, self.baseline = list(runs), baseline
        self._shared = shared_settings(self.runs)

    @cached_property
    def rows(self) -> list[Row]:
        found: dict[tuple[str, float, str], list[Run]] = {}
        for run, label in zip(self.runs, labels(self.runs), strict=True):
            found.setdefault((*run.budget, label), []).append(run)
        for (_, _, label), runs in found.items():
            seeds = [run.seed for run in runs]
            twice = [run.name for run in runs if seeds.count(run.seed) > 1]
            if twice:
                raise ValueError(
                    f"{label}: the same seed twice in {', '.join(twice)}; a repeat is no other "
                    "seed. Take one of them"
                )

        def order(key: tuple[str, float, str]) -> tuple:
            kind, limit, label = key
            return kind, limit, not label.startswith(self.baseline), label

        return [
            Row(key[2], key[:2], tuple(sorted(found[key], key=lambda run: run.seed)))
            for key in sorted(found, key=order)
        ]

    def is_baseline(self, row: Row) -> bool:
        return all(name(run) == self.baseline for run in row.runs)

    def paired_with(self, row: Row) -> Row | None:
        """The baseline's row of the same budget and the same settings but for what a schedule
        owns; of several the one at the same learning rate. None where there is none, or no one."""
        alike = [
            other
            for other in self.rows
            if self.is_baseline(other)
            and other.budget == row.budget
            and self._key(other, self._shared) == self._key(row, self._shared)
        ]
        if len(alike) > 1:
            rate = ["schedule.learning_rate"]
            alike = [other for other in alike if self._key(other, rate) == self._key(row, rate)]
        return alike[0] if len(alike) == 1 else None

    def _key(self, row: Row, keys: Sequence[str]) -> tuple[str, ...]:
        return tuple(repr(row.runs[0].settings.get(key)) for key in keys)

    def pairs(self, row: Row, of: Figure) -> tuple[dict[int, float], dict[int, float]]:
        """(baseline's, the row's) figures by seed, where they are known."""
        other = self.paired_with(row)
        both = [other.runs if other else (), row.runs]
        first, second = (
            {run.seed: value for run in runs if (value := of(run)) is not None} for runs in both
        )
        return first, second

    def target(self) -> float | None:
        """What every run is asked to reach: the mean final solve rate of the baseline, over all
        its budgets; without a baseline that was evaluated, none."""
        finals = [
            rate
            for row in self.rows
            if self.is_baseline(row)
            for run in row.runs
            if (rate := run.get("accuracy", "final")) is not None
        ]
        return statistics.fmean(finals) if finals else None
