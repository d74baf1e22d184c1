"""A group that loses a trajectory for good leaves nothing in the update, whatever of it was
captured, committed or pending before: the update is the synchronous one of the other groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from baselines.sync import Sync
from harness.config import Config, ObjectiveConfig
from harness.protocols import Group, GroupClosed, TrajectoryLost
from thundersync.check import FLOAT64_LIMIT, FORMS, Case, Check, relative_error
from thundersync.parity import parse
from thundersync.recorded import RecordedBatch
from thundersync.stream import Stream
from thundersync.synthetic import arrival, synthetic_groups

DROPPED = 2
TERMS = {
    "policy": [],
    "always": [
        "objective.entropy.coefficient=0.1",
        "objective.kl.coefficient=0.1",
        "objective.kl.estimator=k3",
    ],
}
REPEATED = {("policy", "affine"), ("policy", "bucket")}


class Batches:
    """One check's trajectories, with and without the group; the synchronous update without it."""

    def __init__(self, policy: Path, folder: Path, objective: ObjectiveConfig) -> None:
        self.check = Check(policy, "float64", folder, objective=objective)
        self.groups: list[Group] = self.check._groups["shared"]
        self.others = [g for g in self.groups if g.group != DROPPED]
        synchronous = self.check._synchronous(self.config("batch"), [self.others])
        (self.without,) = synchronous.directions

    def config(self, release: str, form: str = "auto") -> Config:
        return self.check._config(Case(release=release, form=form))

    def recorded(self, seed: int, burst: int, later: int) -> RecordedBatch:
        """The loss comes `later`; in another group a trajectory is tried again."""
        return RecordedBatch(
            self.groups, arrival(self.groups, seed), burst, reward_delay=seed,
            retried={"1-2": 2}, dropped={f"{DROPPED}-1": later},
        )  # fmt: skip


@pytest.fixture(scope="module")
def batches(qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Batches]:
    folder, made = tmp_path_factory.mktemp("weights"), dict[str, Batches]()

    def get(terms: str) -> Batches:
        if terms not in made:
            made[terms] = Batches(qwen3, folder, parse(TERMS[terms]).terms)
        return made[terms]

    return get


@pytest.mark.parametrize("release", ["reward", "submit"])
@pytest.mark.parametrize(
    ("terms", "form"),
    [  # "always" has the policy's own term as well: the other forms of that alone are slow
        pytest.param(terms, form, marks=[pytest.mark.slow] * ((terms, form) in REPEATED))
        for terms in TERMS
        for form in FORMS
    ],
)
def test_the_update_is_that_of_the_other_groups(
    batches: Callable[[str], Batches], terms: str, release: str, form: str
) -> None:
    known = batches(terms)
    config = known.config(release, form)
    late = [known.recorded(0, 1, 4), known.recorded(3, 2, 9), known.recorded(24, 99, 30)]
    at_once = [known.recorded(5, 2, 0)]
    streamed = known.check._play(Stream, config, late)
    # It had captures; under reward not where all its rewards come in the burst of its close.
    assert streamed.dropped.count(DROPPED) == (3 if release == "submit" else 2)
    assert streamed.discarded.count(f"{DROPPED}-1") == (3 if release == "submit" else 0)
    for direction in [*streamed.directions, *known.check._play(Stream, config, at_once).directions]:
        assert relative_error(direction, known.without) <= FLOAT64_LIMIT


@pytest.mark.parametrize("terms", TERMS)
def test_the_group_would_have_mattered(batches: Callable[[str], Batches], terms: str) -> None:
    """And the synchronous schedule leaves it out as well."""
    known = batches(terms)
    config = known.config("batch")
    (whole,) = known.check._synchronous(config, [known.groups]).directions
    assert relative_error(whole, known.without) > 1e-2
    (direction,) = known.check._play(Sync, config, [known.recorded(3, 2, 4)]).directions
    assert torch.equal(direction, known.without)


def told(event: Any) -> tuple[str, str | int]:
    if isinstance(event, GroupClosed):
        return "GroupClosed", event.group.group
    return type(event).__name__, event.trajectory.trajectory_id


def test_events_of_losses_come_as_in_a_rollout() -> None:
    """A late loss is waited for; a dropped group closes when its last trajectory has ended."""
    groups = synthetic_groups(0, 9, (0.0, 1.0), groups=2, size=2)
    order = [t for g in groups for t in g.trajectories]
    batch = RecordedBatch(groups, order, 99, retried={"1-0": 1}, dropped={"0-0": 1})
    assert [told(e) for e in batch.ready()] == [
        ("TrajectoryFinished", "0-0"),
        ("TrajectoryFinished", "0-1"),
        ("RewardArrived", "0-1"),
    ]
    assert batch.ready() == []
    assert told(asyncio.run(batch.next())) == ("TrajectoryLost", "0-0")
    assert [told(e) for e in batch.ready()] == [
        ("GroupClosed", 0),
        ("TrajectoryFinished", "1-0-lost"),
        ("TrajectoryFinished", "1-1"),
        ("RewardArrived", "1-1"),
    ]
    lost = asyncio.run(batch.next())
    assert isinstance(lost, TrajectoryLost) and not lost.final
    assert [told(e) for e in batch.ready()] == [
        ("TrajectoryFinished", "1-0"),
        ("RewardArrived", "1-0"),
        ("GroupClosed", 1),
    ]
    assert asyncio.run(batch.next()) is None
    assert [(g.dropped, len(g.trajectories)) for g in batch.groups] == [(True, 0), (False, 2)]
