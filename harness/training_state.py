"""What a training run is at the end of an update, as JSON and back.

Seeds are functions of names (run seed, group, index), tasks of the group's number, and nothing
draws from a generator that lives on: there is no random state to keep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from harness import lengths
from harness.accounting import Ages
from harness.flow import Resumed
from harness.protocols import Group, Interval, Trajectory, TurnCosts
from harness.timeline import plain
from harness.timings import PassCost, UpdateTimings
from harness.training import Training

Known = Mapping[str, Trajectory]


def state(training: Training) -> dict[str, Any]:
    """At an update's end. `flow` is there where rollouts go on meanwhile."""
    flow = None if training.live is None else training.live.state()
    return {
        "budget": training.budget.state(),
        "recorder": training.recorder.state(),
        "parity": training.parity.state(),
        "version": training.version,
        "updated_s": training.updated_s,
        "next_batch": training.next_batch,
        "tokens_before": training.tokens_before,
        "tokens_trained": training.tokens_trained,
        "rows": training.rows,
        "ages": _ages(training.ages),
        "timings": [_timings(update) for update in training.timings.updates],
        "flow": None if flow is None else asdict(flow) | {"again": list(flow.again.items())},
    }


def restore(training: Training, kept: Mapping[str, Any], known: Known, published: str) -> None:
    """Into a run that has not begun. `known` has the trajectories that `wanted` names, `published`
    is the file of the version's weights."""
    training.budget.restore(kept["budget"])
    training.recorder.restore(kept["recorder"])
    training.parity.restore(kept["parity"])
    training.going_on, training.version = True, kept["version"]
    training.published = published if training.version else None
    training.updated_s = kept["updated_s"]
    training.first_batch = training.next_batch = kept["next_batch"]
    training.tokens_before = kept["tokens_before"]
    training.tokens_trained = kept["tokens_trained"]
    training.rows = kept["rows"]
    ages = {name: Counter(dict(found)) for name, found in kept["ages"]["counted"].items()}
    training.ages = Ages(**ages, means=kept["ages"]["means"])
    training.timings.restore(_measured(update, known) for update in kept["timings"])
    training.resumed_flow = flow(kept)


def flow(kept: Mapping[str, Any]) -> Resumed | None:
    """How far a run without batches had come; None for one that has them."""
    found = kept["flow"]
    return None if found is None else Resumed(**{**found, "again": dict(found["again"])})


def open_groups(kept: Mapping[str, Any], groups_per_batch: int) -> tuple[int, frozenset[int]]:
    """What was not trained on: groups from this number on, and these before it."""
    going = flow(kept)
    if going is None:
        return kept["next_batch"] * groups_per_batch, frozenset()
    return going.begun, frozenset(going.again)


def wanted(kept: Mapping[str, Any]) -> Iterator[str]:
    """Ids of the trajectories whose timings are still used."""
    for update in kept["timings"]:
        for *_, names in update["groups"]:
            yield from names


_AGES = ("tokens", "oldest", "newest", "first", "levels")


def _ages(ages: Ages) -> dict[str, Any]:
    counted = {name: list(getattr(ages, name).items()) for name in _AGES}
    return {"counted": counted, "means": ages.means}


def _timings(update: UpdateTimings) -> dict[str, Any]:
    return {
        "groups": [
            [g.group, g.task_id, g.difficulty, g.dropped, g.version,
             [t.trajectory_id for t in g.trajectories]]
            for g in update.groups
        ],
        "intervals": [plain(interval) for interval in update.intervals],
        "turn_costs": update.turn_costs and asdict(update.turn_costs),
        **{name: getattr(update, name) for name in _PLAIN},
    }  # fmt: skip


_PLAIN = ("started_s", "last_event_s", "step_s", "release", "buffer_bytes", "free_bytes")
_COSTS = ("whole", "kept_forward", "bare_forward", "backward", "rerun")


def _measured(kept: Mapping[str, Any], known: Known) -> UpdateTimings:
    groups = [
        Group(group, task, difficulty, [known[name] for name in names], dropped, version)
        for group, task, difficulty, dropped, version, names in kept["groups"]
    ]
    lengths.forget(groups)
    costs = kept["turn_costs"]
    return UpdateTimings(
        groups=groups,
        intervals=[Interval(*interval) for interval in kept["intervals"]],
        turn_costs=costs
        and TurnCosts(**costs | {name: PassCost(**costs[name]) for name in _COSTS}),
        **{name: kept[name] for name in _PLAIN},
    )
