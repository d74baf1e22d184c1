"""Where a learner's weights lie. No GPU is needed: what is tested is what is asked of one."""

from __future__ import annotations

import pytest
import torch

from environments.swebench.config import SweBenchConfig
from harness.composition import compose
from harness.config import Config
from harness.learner.device import open_device, settle
from harness.learner.placement import Placement
from harness.protocols import UsageError
from harness.validation import validate


def test_a_cpu_learner_asks_for_no_gpu():
    device = open_device(Placement(ranks=2), visible=lambda: 1 // 0)
    assert device == torch.device("cpu")
    settle(device)


def test_too_few_gpus_are_one_line():
    with pytest.raises(UsageError, match=r"learner\.device=cuda, learner\.ranks=2: .* 1 CUDA"):
        open_device(Placement(ranks=2, device="cuda"), visible=lambda: 1)


def test_a_rank_has_one_gpu():
    config = Config(env=SweBenchConfig())
    config.schedule.name, config.schedule.target = "stream", "thundersync.stream:Stream"
    config.schedule.release, config.schedule.learner_devices = "reward", 2
    config.learner.device = "cuda"
    with pytest.raises(UsageError, match=r"learner\.device=cuda: .* take learner\.ranks=2"):
        validate(config)
    config.learner.ranks = 2
    validate(config, gpu_count=lambda: 2)
    with pytest.raises(UsageError, match=r"needs 2 GPUs .*, this machine shows 1"):
        validate(config, gpu_count=lambda: 1)


@pytest.mark.parametrize(("address", "counted"), [(None, True), ("10.0.0.1:6379", False)])
def test_a_ray_cluster_of_the_runs_own_has_this_machines_gpus(monkeypatch, address, counted):
    """Of one that is joined Ray says what there is."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # Ray is not installed here
    config = compose(["learner.device=cuda", "cluster=ray"])
    config.cluster.address = address
    if counted:
        with pytest.raises(UsageError, match=r"needs 1 GPUs .*, this machine shows 0"):
            validate(config, gpu_count=lambda: 0)
    validate(config, gpu_count=lambda: int(counted))


def test_a_process_that_is_shown_one_gpu_alone_takes_it(monkeypatch):
    """As an actor is: whatever its rank, it is the first that it sees."""
    taken = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    placement = Placement(ranks=4, rank=3, device="cuda", gpu=0)
    assert open_device(placement, visible=lambda: 1) == torch.device("cuda", 0)
    assert taken == [0]
    with pytest.raises(UsageError, match="torch sees 0 CUDA"):
        open_device(placement, visible=lambda: 0)
