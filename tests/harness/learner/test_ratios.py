"""The figures of importance ratios: of every scored token once, whatever ranks and layout, and of
nothing that a parity check scored."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import torch

from baselines.sync import Sync
from harness.config import Config
from harness.learner.client import scored
from harness.learner.torch_learner import TorchLearner
from harness.policy.load import load_for_training
from harness.protocols import Group
from thundersync.parity import parse
from thundersync.recorded import RecordedBatch, play
from thundersync.stream import Stream
from thundersync.synthetic import arrival, synthetic_groups
from thundersync.terms import furnish

BOUNDS = ["objective.importance.kind=mask", "objective.importance.high=1.3"]
REGULARISED = [*BOUNDS, "objective.entropy.coefficient=0.01"]

Configure = Callable[..., Config]


def made(config: Config, terms: Sequence[str], policy: Path) -> list[Group]:
    """Groups with an engine's log-probabilities; a trajectory without action tokens is one."""
    config.objective = parse(terms).terms
    groups = synthetic_groups(1, 128, (0.0, 1.0, 0.25))
    furnish(groups, load_for_training(policy, torch.float64), config.objective, seed=1)
    return groups


def trained(groups: Sequence[Group], every: bool) -> int:
    """Action tokens of what has a gradient."""
    kept = [g for g in groups if every or len({t.reward for t in g.trajectories}) > 1]
    return sum(t.action_tokens for g in kept for t in g.trajectories)


@pytest.mark.parametrize("terms", [BOUNDS, REGULARISED], ids=["policy", "always"])
@pytest.mark.parametrize("layout", ["ddp", "sharded", "fsdp"])
def test_two_ranks_report_what_one_does(
    fleet: Callable[[Config], Any],
    make_config: Configure,
    one_rank: Callable[[Config], TorchLearner],
    policy: Path,
    layout: str,
    terms: Sequence[str],
):
    config = make_config(1, "ddp", "float64")
    groups = made(config, terms, policy)
    batch = RecordedBatch(groups, arrival(groups, 0), burst=3)
    ratios = play(Sync(config), one_rank(config), config, [batch]).stats[0].ratios
    assert ratios is not None
    assert ratios.tokens == trained(groups, every=terms is REGULARISED)
    assert 0 < ratios.outside < ratios.tokens
    assert ratios.largest > 1.3

    config = make_config(2, layout, "float64")
    made(config, terms, policy)
    learner = fleet(config)
    learner.play(Sync(config), [RecordedBatch(groups, arrival(groups, 0), burst=4)])
    assert astuple(learner.client.stats[-1].ratios) == pytest.approx(astuple(ratios), rel=1e-9)
    config.schedule.release = "reward"
    learner.play(Stream(config), [RecordedBatch(groups, arrival(groups, 7), burst=2)])
    streamed = learner.client.stats[-1].ratios
    assert streamed.largest == pytest.approx(ratios.largest)
    if terms is REGULARISED:  # everything has a gradient: captured or not, each token once
        assert astuple(streamed) == pytest.approx(astuple(ratios), rel=1e-9)


def test_a_parity_check_counts_nothing(
    make_config: Configure, one_rank: Callable[[Config], TorchLearner], policy: Path
):
    config = make_config(1, "ddp", "float64")
    groups = made(config, BOUNDS, policy)
    learner = one_rank(config)
    rows = [scored(t, behaviour=True) for t in groups[1].trajectories]
    learner.accumulate(rows[:2], [1.0, -1.0])
    assert learner.scorer.importance is not None
    assert learner.scorer.importance.sums is not None
    before = copy.deepcopy(learner.scorer.importance.sums)
    learner.parity_begin(10.0)
    for order in (rows, rows[::-1]):
        learner.accumulate(order, [1.0] * len(order))
        learner.parity_add()
    learner.parity_end()
    assert torch.equal(learner.scorer.importance.sums, before)
    ratios = learner.step(10.0).ratios
    assert ratios is not None
    assert ratios.tokens == sum(sum(r.action_mask_T) for r in rows[:2])
    assert learner.step(10.0).ratios is None  # each update has its own
