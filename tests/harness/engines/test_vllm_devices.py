"""Which devices engine=vllm has, and what of them cannot be: whole engines on a CPU are in
tests/vllm; on a GPU nothing of it was run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.cluster import needs
from harness.cluster.local import LocalCluster
from harness.composition import compose
from harness.config import Config
from harness.engines import select, vllm_devices
from harness.engines.vllm_options import ONE_PROCESS, SEVERAL_PROCESSES, VllmOptions, arguments
from harness.policy.load import resolve
from harness.protocols import UsageError
from harness.validation import validate

TINY = resolve("tiny")


def on_gpus(*overrides: str, learners: int = 0) -> Config:
    config = compose(["engine=vllm", "engine.device=cuda", *overrides])
    if learners:
        config.learner.device, config.learner.ranks = "cuda", learners
    return config


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["engine.tensor_parallel=2"],
            r"^engine\.tensor_parallel=2: cannot share the 1 of schedule\.engine_devices=1 that",
        ),
        (
            ["engine.tensor_parallel=2", "engine.replicas=3", "schedule.engine_devices=9"],
            r"^engine\.tensor_parallel=2: cannot share the 3 of schedule\.engine_devices=9 that",
        ),
        (["engine.tensor_parallel=0"], r"^engine\.tensor_parallel=0: out of range"),
        (
            ["engine.replicas=2", "schedule.engine_devices=3"],
            r"^engine\.replicas=2: cannot share schedule\.engine_devices=3 evenly",
        ),
        (
            ["engine.device=cuda", "schedule.engine_devices=4"],
            r"a process has one; take engine\.tensor_parallel=4, or engine\.replicas=4$",
        ),
        (
            ["engine.device=cuda", "schedule.engine_devices=4", "engine.tensor_parallel=2"],
            r"a process has one; take engine\.tensor_parallel=4, or engine\.replicas=2$",
        ),
        (
            ["engine.device=cuda", "schedule.engine_devices=3", "engine.tensor_parallel=2"],
            r"engine\.replicas=1 of engine\.tensor_parallel=2: .* take engine\.tensor_parallel=3$",
        ),
        (
            ["+engine.arguments={tensor_parallel_size: 2}"],
            r"tensor_parallel_size is set by the harness; leave it out, and take engine\.tensor_pa",
        ),
        (["engine=torch", "engine.tensor_parallel=2"], r"^engine\.tensor_parallel=2: engine=torch"),
        (
            ["env=simulated", "workload=swebench_verified", "hardware=8xb200",
             "engine=simulated", "engine.tensor_parallel=2"],
            r"^engine\.tensor_parallel=2: an engine on paper takes hardware\.engine_tensor_para",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_shared_is_one_line(overrides: list[str], words: str) -> None:
    other = any(override.startswith("engine=") for override in overrides)
    with pytest.raises(UsageError, match=words) as raised:
        validate(compose(overrides if other else ["engine=vllm", *overrides]))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changed", "fitting"),
    [
        ({}, "1, 2, 4"),  # 4 heads with keys of their own, 384 columns, a vocabulary of 1,024
        ({"num_key_value_heads": 2}, "1, 2, 4"),  # four parts: two have the same head of keys
        ({"intermediate_size": 514}, "1, 2"),
        (  # 1,024 tokens do not go into thirds
            {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 32},
            "1",
        ),
        (  # SmolLM2's: no half of nine heads
            {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 32,
             "intermediate_size": 1536, "vocab_size": 49152},
            "1, 3",
        ),
    ],
)  # fmt: skip
def test_a_policy_is_cut_into_whole_heads_and_equal_parts(
    changed: dict[str, Any], fitting: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(TINY, tmp_path / "policy")
    config = json.loads((folder / "config.json").read_text()) | changed
    (folder / "config.json").write_text(json.dumps(config))
    asked = compose(
        ["engine=vllm", "engine.tensor_parallel=16", "schedule.engine_devices=16",
         f"policy.path={folder}"]
    )  # fmt: skip
    with pytest.raises(UsageError, match=rf"^engine\.tensor_parallel=16: .* one of {fitting}$"):
        select.check_policy(asked, folder)


def test_a_replica_of_two_processes_has_half_of_its_heads_and_threads_in_each() -> None:
    asked = compose(
        ["engine=vllm", "engine.replicas=2", "engine.tensor_parallel=2",
         "schedule.engine_devices=12"]
    )  # fmt: skip
    options = vllm_devices.options(asked, TINY, 1)
    assert (options.threads, options.tensor_parallel, options.gpus) == (3, 2, None)
    given = arguments(options)
    executor = "distributed_executor_backend"
    assert (given["tensor_parallel_size"], given[executor]) == (2, SEVERAL_PROCESSES)
    one = arguments(VllmOptions(options.path, options.slots, options.max_context))
    assert given["kv_cache_memory_bytes"] * 2 == one["kv_cache_memory_bytes"]
    assert one[executor] == ONE_PROCESS  # the model is in EngineCore


def test_on_ray_a_replicas_gpus_are_those_of_its_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray shows an actor its own alone; on a CPU a bundle has the replica's threads."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # of the driver: says nothing of the nodes
    two = ("engine.replicas=2", "engine.tensor_parallel=2", "schedule.engine_devices=4")
    on_ray = on_gpus("cluster=ray", *two)
    assert vllm_devices.options(on_ray, TINY, 1).gpus is None
    (engine,) = [group for group in needs.groups(on_ray, False) if group.name == "engine"]
    assert engine.bundles == [{"CPU": 2, "GPU": 2}] * 2
    on_cores = compose(["engine=vllm", "cluster=ray", *two])
    assert vllm_devices.options(on_cores, TINY, 1).threads == 1
    (engine,) = [group for group in needs.groups(on_cores, False) if group.name == "engine"]
    assert engine.bundles == [{"CPU": 2}] * 2


def test_replicas_have_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = compose(["engine=vllm", "engine.replicas=2", "schedule.engine_devices=4"])
    monkeypatch.setattr("harness.cluster.pinning.cores", lambda config: ([2, 3, 6, 7], [0]))
    engine = select.open_engine(asked, TINY, LocalCluster(), print)
    workers = [life.engine._worker for life in engine._lives.all]
    assert [(w.name, w._affinity, w._threads) for w in workers] == [
        ("engine/0", [2, 3], 2),
        ("engine/1", [6, 7], 2),
    ]


@pytest.mark.parametrize(
    ("learners", "visible", "expected"),
    [
        (0, None, ["0,1", "2,3"]),
        (2, None, ["2,3", "4,5"]),
        (1, "4,7,9,GPU-a,5", ["7,9", "GPU-a,5"]),
    ],
)
def test_replicas_take_the_gpus_after_the_learners(
    learners: int, visible: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = on_gpus(
        "engine.replicas=2", "engine.tensor_parallel=2", "schedule.engine_devices=4",
        learners=learners,
    )  # fmt: skip
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    vllm_devices.check(config)
    assert [vllm_devices.options(config, TINY, n).gpus for n in range(2)] == expected


def test_gpus_that_are_not_there_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    config = on_gpus("engine.tensor_parallel=2", "schedule.engine_devices=2", learners=3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    with pytest.raises(UsageError, match=r"=0,1,2,3 has no GPU left for engine/0 of .* beside 3"):
        vllm_devices.options(config, TINY)
