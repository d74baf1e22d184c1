"""Every constant of every preset says where it is from, and every preset has a cost model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import configs
from configs.schemas import register
from environments.simulated.workload_config import WorkloadConfig
from harness.config import Config
from harness.costs.config import HardwareConfig
from harness.costs.select import cost_model
from harness.costs.shapes import shape, table
from harness.protocols import UsageError

FOLDER = Path(configs.__file__).parent
HARDWARE = sorted(p.stem for p in (FOLDER / "hardware").glob("*.yaml") if p.stem != "auto")
WORKLOADS = sorted(p.stem for p in (FOLDER / "workload").glob("*.yaml") if p.stem != "none")
UNSOURCED = {"label", "sources"}  # a name, and the sources themselves


@functools.cache
def composed(*overrides: str) -> Config:
    register()
    with initialize_config_dir(str(FOLDER), version_base=None):
        made = compose("config", overrides=["schedule=sync", "workload=math", *overrides])
        config = OmegaConf.to_object(made)
    assert isinstance(config, Config)
    return config


def test_the_presets_that_the_plan_names_are_there() -> None:
    named = {"8xb200", "8xh100", "8xh200", "64xh100", "32xh20", "64xh20", "128xh20", "cpu2"}
    assert named <= set(HARDWARE)
    assert {"swebench_verified", "terminal_bench_4", "math"} <= set(WORKLOADS)


@pytest.mark.parametrize("name", HARDWARE)
def test_every_constant_of_a_hardware_has_a_source(name: str) -> None:
    hardware = composed(f"hardware={name}").hardware
    keys = {f.name for f in dataclasses.fields(HardwareConfig)} - UNSOURCED
    assert set(hardware.sources) == keys
    assert all(len(source) >= 7 for source in hardware.sources.values())


@pytest.mark.parametrize("name", HARDWARE)
def test_every_hardware_has_a_cost_model_that_names_it_and_what_is_assumed(name: str) -> None:
    config = composed(f"hardware={name}")
    costs = cost_model(config)
    assert name.removeprefix("cpu").split("x")[-1].upper() in costs.label.upper()
    assert "simulated" in costs.label
    marked = [k for k, v in config.hardware.sources.items() if "assumed" in v]
    assert {f"hardware.{key}" for key in marked} <= set(costs.assumed)
    assert marked or "cpu" in name
    seconds = [
        costs.decode_step_s(8, 8000), costs.prefill_s(100, 1000), costs.backward_s([1000]),
        costs.forward_s([1000]), costs.step_s(), costs.publish_s(),
    ]  # fmt: skip
    assert all(0 < value < 60 for value in seconds)


@pytest.mark.parametrize("name", sorted(table()))
def test_every_number_of_a_shape_has_a_source(name: str) -> None:
    row, sources = table()[name], table()[name]["sources"]
    assert "rest" in sources or set(sources) >= set(row) - {"sources"}
    assert set(sources) - {"rest"} <= set(row)
    assert shape(name).pair_flops > 0


def numbers(workload: WorkloadConfig) -> Iterator[str]:
    """The keys that need a source: a draw has one for its numbers together."""
    for part in dataclasses.fields(workload):
        value: Any = getattr(workload, part.name)
        if dataclasses.is_dataclass(value):
            yield part.name
    yield from (f"difficulties.{key}" for key in ("share", "success", "turns_factor"))
    yield from ("reward_icc", "limits")


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_number_of_a_workload_has_a_source(name: str) -> None:
    workload = composed("hardware=8xb200", f"workload={name}").workload
    workload.check()
    assert set(numbers(workload)) == set(workload.sources)


def test_hardware_that_is_not_described_has_no_cost_model() -> None:
    with pytest.raises(UsageError, match="hardware=auto"):
        cost_model(composed("hardware=auto"))


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("schedule.engine_devices=6", "schedule.engine_devices=6"),
        ("hardware.engine_tensor_parallel=3", "schedule.engine_devices=4"),
        ("hardware.shape=dense_28b", "hardware.shape=dense_28b"),
        ("hardware.flops_s=0", "hardware.flops_s=0"),
        ("hardware.train_efficiency=1.1", "hardware.train_efficiency=1.1"),
        ("hardware.memory_bytes=60e9", "hardware.engine_tensor_parallel=1"),
    ],
)
def test_impossible_hardware_is_named(override: str, key: str) -> None:
    with pytest.raises(UsageError, match=f"^{key}") as caught:
        cost_model(composed("hardware=8xb200", override))
    assert "\n" not in str(caught.value)
