"""An optimizer step goes up for what was better than its group, down for what was worse."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.config import Config
from harness.learner.client import scored
from harness.learner.torch_learner import TorchLearner
from harness.parts import learner_options
from harness.policy.load import resolve
from thundersync.synthetic import synthetic_groups


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_step_moves_the_score_with_its_advantage(tmp_path: Path, advantage: float):
    learner = TorchLearner(**learner_options(Config(), resolve("tiny"), tmp_path))
    row = scored(synthetic_groups(1, learner.vocabulary, (0.0, 1.0))[1].trajectories[1])

    def score() -> float:
        found = learner.scorer([row], [1.0])
        assert found is not None
        return float(found.policy.detach())

    before = score()
    learner.accumulate([row], [advantage])
    learner.step(1.0)
    assert (score() - before) * advantage > 0.1
