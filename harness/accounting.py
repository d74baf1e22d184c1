"""Who was busy, blocked and idle inside the budget's windows, and how stale what was trained is.

docs/accounting.md is the definition; this is where it is computed, for every schedule alike.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.cluster.devices import Devices, devices
from harness.config import Config
from harness.protocols import VersionSpan
from harness.timeline import Timeline, Window, blocked, length_s, union

ENGINE = "engine/0"
ALIVE = "alive"  # a trajectory's life, from its sandbox's start to its end
EXCHANGE = "exchange"  # new weights, from the request until the engine has loaded them
TEACHER = "teacher/0"
KINDS = ("learner", "engine", "sandbox")


@dataclass(frozen=True, slots=True)
class Trained:
    """A trajectory in an optimizer step: the learner's version before the step, and which versions
    made its tokens."""

    version: int
    spans: Sequence[VersionSpan]

    @classmethod
    def at(cls, version: int, spans: Sequence[VersionSpan]) -> Trained:
        """One span for each version, in the order of their first tokens."""
        tokens: dict[int, int] = {}
        for span in spans:
            tokens[span.version] = tokens.get(span.version, 0) + span.end - span.start
        return cls(version, tuple(VersionSpan(v, 0, n) for v, n in tokens.items()))

    @property
    def ages(self) -> list[tuple[int, int]]:
        """(staleness in versions, tokens) of each span."""
        return [(self.version - s.version, s.end - s.start) for s in self.spans]


@dataclass
class Ages:
    """All trained trajectories in numbers that do not grow with them; an age is a staleness in
    versions. `tokens`: age -> tokens. `oldest`, `newest` and `first`: age of a trajectory's oldest,
    newest and first token -> trajectories. `levels`: newest version less oldest -> trajectories.
    Trajectories without a generated token count nowhere."""

    tokens: Counter[int] = field(default_factory=Counter)
    oldest: Counter[int] = field(default_factory=Counter)
    newest: Counter[int] = field(default_factory=Counter)
    first: Counter[int] = field(default_factory=Counter)
    levels: Counter[int] = field(default_factory=Counter)
    means: float = 0.0
    """The sum of the trajectories' means over tokens."""

    def add(self, trained: Iterable[Trained]) -> Ages:
        for one in trained:
            pairs = one.ages
            if not pairs:
                continue
            for age, tokens in pairs:
                self.tokens[age] += tokens
            ages = [age for age, _ in pairs]
            oldest, newest = max(ages), min(ages)
            self.oldest[oldest] += 1
            self.newest[newest] += 1
            self.first[ages[0]] += 1
            self.levels[oldest - newest] += 1
            self.means += sum(a * n for a, n in pairs) / sum(n for _, n in pairs)
        return self


def mean(counted: Counter[int]) -> float | None:
    """Of numbers that were seen so often each; None of none."""
    total = counted.total()
    return sum(number * n for number, n in counted.items()) / total if total else None


def learner_ranks(ranks: int) -> list[str]:
    return [f"learner/{rank}" for rank in range(ranks)]


def engine_replicas(replicas: int) -> list[str]:
    return [f"engine/{replica}" for replica in range(replicas)]


@contextlib.contextmanager
def exchange(timeline: Timeline, ranks: int, replicas: int = 1) -> Iterator[None]:
    """The engine takes new weights, and the learner waits until it has them."""
    with contextlib.ExitStack() as stack:
        for name in (*engine_replicas(replicas), *learner_ranks(ranks)):
            stack.enter_context(timeline.busy(blocked(name), EXCHANGE))
        yield


def named(config: Config, timeline: Timeline) -> dict[str, list[str]]:
    """The resources of each kind. Learner ranks and engine are those of the configuration, whether
    or not they ever worked; sandbox slots are as many as trajectories were ever alive at once."""
    prefix = blocked("")
    alive = [name.removeprefix(prefix) for name in timeline.resources(f"{prefix}sandbox")]
    return {
        "learner": learner_ranks(config.learner.ranks),
        "engine": engine_replicas(config.engine.replicas),
        "sandbox": sorted({*timeline.resources("sandbox"), *alive}),
    }


def resources(
    config: Config, timeline: Timeline, windows: Sequence[Window]
) -> dict[str, dict[str, float | None]]:
    """summary.json's `resources`: per kind, shares of busy, blocked and idle that add up to 1; None
    where a kind had no resource (sandboxes in a replay) or training no time."""
    names = named(config, timeline)
    return {kind: timeline.shares(names[kind], windows) for kind in KINDS}


def idle(config: Config, timeline: Timeline, windows: Sequence[Window]) -> dict[str, float | None]:
    """summary.json's `idle`: 1 - busy of the learner's ranks, of the engine, and of all devices."""
    names = named(config, timeline)
    learner = timeline.idle_fraction(names["learner"], windows)
    engine = timeline.idle_fraction(names["engine"], windows)
    return {
        "learner": learner,
        "engine": engine,
        "devices": idle_devices(
            devices(config), names["learner"], timeline, windows, names["engine"]
        ),
    }


def idle_devices(
    counted: Devices,
    ranks: Sequence[str],
    timeline: Timeline,
    windows: Sequence[Window],
    replicas: Sequence[str] = (ENGINE,),
) -> float | None:
    """Device-weighted idle. A device that an engine's replica and a learner's rank share is busy
    when either is; ranks have equally many devices, and so have replicas. A teacher's devices are
    its own."""
    inside = union(windows)
    if not length_s(inside):
        return None
    teacher = timeline.idle_fraction([TEACHER], windows) or 0.0
    return (
        _idle_pair(counted, ranks, replicas, timeline, inside) * (counted.total - counted.teacher)
        + teacher * counted.teacher
    ) / counted.total


def _idle_pair(
    counted: Devices,
    ranks: Sequence[str],
    replicas: Sequence[str],
    timeline: Timeline,
    inside: Sequence[Window],
) -> float:
    """Of the devices of engine and learner."""
    if counted.placement == "colocated":
        total = counted.engine
        shared = Counter(
            (replicas[d * len(replicas) // total], ranks[d * len(ranks) // total])
            for d in range(total)
        )
        busy = sum(
            timeline.busy_together_s(replica, rank, inside) * devices
            for (replica, rank), devices in shared.items()
        )
        return max(0.0, 1.0 - busy / shared.total() / length_s(inside))
    engine = timeline.idle_fraction(replicas, inside) or 0.0
    learner = timeline.idle_fraction(ranks, inside) or 0.0
    devices = counted.engine + counted.learner
    return (counted.engine * engine + counted.learner * learner) / devices


def bound(config: Config) -> int | None:
    """The largest staleness that the schedule allows: its max_staleness, or what it promises
    without one. None: it promises nothing."""
    promised = {"sync": 0, "stream": 0, "one_step_off": 1}
    if config.schedule.max_staleness is not None:
        return config.schedule.max_staleness
    return promised.get(config.schedule.name)


def staleness(ages: Ages, most: int | None) -> dict[str, Any]:
    """summary.json's `staleness`: mean and max in learner versions over trained tokens, and what is
    beyond `most`: its tokens, and the trajectories that have one."""
    violations = None
    if most is not None:
        violations = {
            "bound": most,
            "tokens": sum(n for age, n in ages.tokens.items() if age > most),
            "trajectories": sum(n for age, n in ages.oldest.items() if age > most),
        }
    return {
        "mean": mean(ages.tokens),
        "max": max(ages.tokens, default=None),
        "violations": violations,
    }
