"""Two learner processes make the update of one: where a group is dropped, and for objectives that
weight, mask or leave out trajectories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from baselines.sync import Sync
from harness.config import Config
from harness.learner.torch_learner import TorchLearner
from harness.policy.load import load_for_training
from harness.protocols import Group
from thundersync.check import FLOAT64_LIMIT, relative_error
from thundersync.parity import parse
from thundersync.recorded import RecordedBatch, play
from thundersync.stream import Stream
from thundersync.synthetic import arrival, synthetic_groups
from thundersync.terms import furnish

REWARDS = (0.0, 1.0, 0.25)
DROPPED = 2

Configure = Callable[..., Config]
Fleets = Callable[[Config], Any]
OneRank = Callable[[Config], TorchLearner]


def with_terms(config: Config, terms: str) -> Config:
    config.objective = parse([f"objective.{term}" for term in terms.split()]).terms
    return config


def alone(make_config: Configure, one_rank: OneRank, terms: str, groups: Sequence[Group]):
    """The synchronous update of one rank."""
    config = with_terms(make_config(1, "ddp", "float64"), terms)
    in_order = RecordedBatch(groups, arrival(groups, 0), burst=3)
    (update,) = play(Sync(config), one_rank(config), config, [in_order]).directions
    return update


ALWAYS = "entropy.coefficient=0.01"


@pytest.mark.parametrize("terms", ["", ALWAYS], ids=["policy", "always"])
@pytest.mark.parametrize("layout", ["ddp", "sharded", "fsdp"])
def test_a_dropped_group_leaves_nothing(
    fleet: Fleets, make_config: Configure, one_rank: OneRank, layout: str, terms: str
) -> None:
    groups = synthetic_groups(1, 128, REWARDS)
    expected = alone(make_config, one_rank, terms, [g for g in groups if g.group != DROPPED])
    assert relative_error(alone(make_config, one_rank, terms, groups), expected) > 1e-2
    learner = fleet(with_terms(make_config(2, layout, "float64"), terms))

    def late(seed: int, burst: int, reward_delay: int) -> RecordedBatch:
        lost = {"retried": {"1-1": 3}, "dropped": {f"{DROPPED}-1": 6}}
        return RecordedBatch(groups, arrival(groups, seed), burst, reward_delay, **lost)

    client = learner.client
    for release in ("reward", "submit"):
        learner.config.schedule.release = release
        client.dropped.clear()
        client.discarded.clear()
        made = learner.play(Stream(learner.config), [late(7, 2, 1), late(3, 5, 4)])
        assert client.dropped.count(DROPPED) == 2
        assert client.discarded.count(f"{DROPPED}-1") == (2 if release == "submit" else 0)
        for direction in made:
            assert relative_error(direction, expected) <= FLOAT64_LIMIT


@pytest.mark.parametrize(
    ("layout", "terms"),
    [
        ("ddp", "importance.kind=truncate importance.high=1.1"),
        ("sharded", "overlong.mask=true"),
        ("fsdp", "dynamic_sampling=filter"),
        ("ddp", "name=opd discount=0.5"),
        ("sharded", "name=opd task_weight=0.5"),
        ("fsdp", "name=opd top_k=5"),
        ("fsdp", "name=opd task_weight=0.5"),
    ],
)
def test_what_an_objective_weights_masks_or_leaves_out(
    fleet: Fleets,
    make_config: Configure,
    one_rank: OneRank,
    policy: Path,
    layout: str,
    terms: str,
) -> None:
    groups = synthetic_groups(1, 128, REWARDS)
    config = with_terms(make_config(2, layout, "float64"), terms)
    furnish(groups, load_for_training(policy, torch.float64), config.objective, seed=1)
    expected = alone(make_config, one_rank, terms, groups)
    assert relative_error(alone(make_config, one_rank, "", groups), expected) > 1e-2
    learner = fleet(config)
    orders = [arrival(groups, seed) for seed in (7, 3)]
    made = learner.play(Sync(config), [RecordedBatch(groups, orders[0], burst=4)])
    submitted = next(t.trajectory_id for t in groups[1].trajectories if t.end == "submit")
    for release in ("reward", "submit"):
        config.schedule.release = release
        learner.client.discarded.clear()
        made += learner.play(
            Stream(config),
            [RecordedBatch(groups, order, 2, 5, retried={submitted: 4}) for order in orders],
        )
        assert len(learner.client.discarded) == (2 if release == "submit" else 0)
    assert len(made) == 5
    for direction in made:
        assert relative_error(direction, expected) <= FLOAT64_LIMIT


@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_logits_in_slices(
    fleet: Fleets, make_config: Configure, one_rank: OneRank, layout: str
) -> None:
    """Made again in the backward pass, with a head whose weights lie in shards."""
    groups = synthetic_groups(1, 128, REWARDS)
    expected = alone(make_config, one_rank, ALWAYS, groups)
    config = with_terms(make_config(2, layout, "float64"), ALWAYS)
    config.learner.logits_tokens = 7
    learner = fleet(config)
    made = learner.play(Sync(config), [RecordedBatch(groups, arrival(groups, 7), burst=4)])
    made += learner.play(Stream(config), [RecordedBatch(groups, arrival(groups, 3), 2, 5)])
    assert len(made) == 2
    for direction in made:
        assert relative_error(direction, expected) <= FLOAT64_LIMIT
