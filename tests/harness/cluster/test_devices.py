"""Placement: what it makes of the number of devices, and who may ask for it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from harness import parts
from harness.budget import Budget
from harness.clock import WallClock
from harness.cluster.devices import Devices, devices
from harness.cluster.pinning import cores
from harness.composition import compose
from harness.engines import client as engines
from harness.manifest import manifest
from harness.protocols import UsageError
from harness.validation import validate

COLOCATED = ("schedule=sync", "schedule.placement=colocated")
TWO = ("schedule.engine_devices=2", "schedule.learner_devices=2")


def refused(*overrides: str) -> str:
    with pytest.raises(UsageError) as raised:
        validate(compose(list(overrides)))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_apart_they_add_up_and_together_they_do_not():
    apart = compose(["schedule.engine_devices=3", "schedule.learner_devices=2"])
    assert devices(apart) == Devices("disaggregated", 3, 2, 5)
    together = compose([*COLOCATED, *TWO])
    validate(together)
    assert devices(together) == Devices("colocated", 2, 2, 2)
    assert manifest(together)["devices"] == {
        "placement": "colocated", "engine": 2, "learner": 2, "total": 2, "teacher": 0,
    }  # fmt: skip


def test_a_budget_of_device_seconds_counts_a_shared_device_once():
    class Still(WallClock):
        at_s = 10.0

        def now(self) -> float:
            return self.at_s

    spent = {}
    for placement in ("disaggregated", "colocated"):
        clock = Still()
        config = compose(
            ["schedule=sync", f"schedule.placement={placement}", *TWO, "budget.kind=device_s"]
        )
        budget = Budget(config.budget, devices(config).total, clock)
        budget.start()
        clock.at_s = 15.0
        spent[placement] = budget.spent
    assert spent == {"disaggregated": 20.0, "colocated": 10.0}


def test_both_are_pinned_to_the_same_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 3, 5})
    assert cores(compose([*COLOCATED, *TWO, "cluster.pin_cores=true"])) == ([3, 5], [3, 5])
    four = ("schedule.engine_devices=4", "schedule.learner_devices=4")
    assert refused(*COLOCATED, *four, "cluster.pin_cores=true") == (
        "cluster.pin_cores=true: schedule.engine_devices=4 and schedule.learner_devices=4 (the "
        "same ones) need 4 cores, there is 3, 5, 7; take fewer devices, or cluster.pin_cores=false"
    )


def test_unequal_numbers_of_the_same_devices_are_refused():
    assert refused(*COLOCATED, "schedule.learner_devices=2") == (
        "schedule.placement=colocated: schedule.engine_devices=1 and schedule.learner_devices=2 "
        "are the same devices; give both the run's total"
    )


@pytest.mark.parametrize("schedule", ["stream", "one_step_off", "async"])
def test_a_schedule_that_overlaps_cannot_be_colocated(schedule):
    assert refused(f"schedule={schedule}", "schedule.placement=colocated") == (
        f"schedule.placement=colocated: under schedule={schedule} engine and learner work at the "
        "same time by design, so they cannot take turns on the same devices; take schedule=sync, "
        "or schedule.placement=disaggregated"
    )


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("learner.device=cuda",), "they share no device"),
        (("objective.kl.place=reward", "objective.kl.coefficient=0.1", "objective.kl.estimator=k1"),
         "while the engine decodes others"),
    ],
)  # fmt: skip
def test_what_would_run_both_at_once_or_apart_is_refused(overrides, reason):
    assert reason in refused(*COLOCATED, *overrides)


def test_each_process_has_every_thread_and_core(monkeypatch, tmp_path):
    """Side by side a device would be one's or the other's; in turns both are given all of them."""
    made = {}

    def client(name: str) -> type:
        class Recorded:
            def __init__(self, *unused: Any, threads: int, affinity: Any, **also: Any) -> None:
                made[name] = threads, affinity

            async def start(self) -> None: ...
            async def close(self) -> None: ...

        return Recorded

    async def body() -> None:
        config = compose(
            [*COLOCATED, *TWO, "cluster.pin_cores=true", "env=terminal_bench", "replay=recording"]
        )
        async with parts.open_parts(config, "test", tmp_path, say=print):
            pass

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 3, 5})
    monkeypatch.setattr(engines, "TorchEngineClient", client("engine"))
    monkeypatch.setattr(parts, "TorchLearnerClient", client("learner"))
    asyncio.run(body())
    assert made == {"engine": (2, [3, 5]), "learner": (2, [3, 5])}
