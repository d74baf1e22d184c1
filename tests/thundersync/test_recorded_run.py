"""Trajectories that the main job recorded (three groups of its first update, seed 0), the bundled
policy: every rung of the ladder gives the synchronous update within the permuted control."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from baselines.sync import Sync
from harness.config import Config
from harness.learner.torch_learner import TorchLearner
from harness.parity import GRADIENT_FACTOR
from harness.parts import learner_options
from harness.policy.load import resolve
from harness.protocols import Group
from harness.trajectory_lines import read
from thundersync.check import PERMUTATIONS, relative_error
from thundersync.recorded import RecordedBatch, permuted_packing, play
from thundersync.stream import Stream

RECORDED = Path(__file__).with_name("data") / "recorded.jsonl.gz"


@pytest.mark.slow
def test_every_rung_gives_the_synchronous_update_of_recorded_trajectories(tmp_path: Path) -> None:
    plain = tmp_path / "trajectories.jsonl"
    with gzip.open(RECORDED) as packed, plain.open("wb") as file:
        shutil.copyfileobj(packed, file)
    groups: dict[int, Group] = {}
    trajectories = [trajectory for trajectory, _ in read(plain)]
    for t in sorted(trajectories, key=lambda t: (t.group, t.index)):
        groups.setdefault(t.group, Group(t.group, t.task_id, t.difficulty)).trajectories.append(t)
    assert [len(g.trajectories) for g in groups.values()] == [8, 8, 8]
    assert [sum(t.reward or 0.0 for t in g.trajectories) for g in groups.values()] == [5, 2, 0]
    arrival = sorted(trajectories, key=lambda t: t.reward_s)  # as it happened

    config = Config()
    config.schedule.learning_rate = 0.0
    config.schedule.release = "batch"
    learner = TorchLearner(**learner_options(config, resolve("tiny"), tmp_path))

    def batch(reward_delay: int = 0) -> RecordedBatch:
        return RecordedBatch(list(groups.values()), arrival, 2, reward_delay)

    reference = play(Sync(config), learner, config, [batch()]).directions[0]
    control = 0.0
    for seed in range(PERMUTATIONS):
        permuted = play(Sync(config), learner, config, [batch()], permuted_packing(seed))
        control = max(control, relative_error(permuted.directions[0], reference))
    assert control > 0
    for release in ("batch", "group", "reward", "submit"):
        config.schedule.release = release
        streamed = play(Stream(config), learner, config, [batch(reward_delay=2)])
        assert relative_error(streamed.directions[0], reference) <= GRADIENT_FACTOR * control
        early = streamed.stats[0].ledger_buffers_peak
        assert (early >= 1) == (release in ("reward", "submit"))
