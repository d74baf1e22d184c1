"""Busy, blocked and idle by hand; device-weighted idle under both placements; staleness."""

from __future__ import annotations

import time

import pytest

from harness.accounting import (
    ALIVE,
    EXCHANGE,
    Ages,
    Trained,
    bound,
    exchange,
    idle,
    named,
    resources,
    staleness,
)
from harness.composition import compose
from harness.protocols import Interval, VersionSpan
from harness.timeline import Timeline, blocked


def timeline(*intervals: tuple[str, str, float, float]) -> Timeline:
    found = Timeline(0.0)
    for resource, name, start_s, end_s in intervals:
        found.add(Interval(resource, name, start_s, end_s))
    return found


# Ten seconds of a synchronous update and the first of the next: two trajectories, then the learner.
UPDATE = (
    ("sandbox/00", "start", 0.0, 1.0),
    ("sandbox/00", "exec", 2.0, 3.0),
    ("sandbox/00", "verify", 4.0, 5.0),
    (blocked("sandbox/00"), ALIVE, 0.0, 5.0),
    ("sandbox/01", "start", 0.0, 1.0),
    (blocked("sandbox/01"), ALIVE, 0.0, 4.0),
    ("engine/0", "generate", 1.0, 4.0),
    ("learner/0", "accumulate", 5.0, 8.0),
    ("learner/0", "publish", 8.0, 8.5),
    (blocked("engine/0"), EXCHANGE, 8.5, 9.5),
    (blocked("learner/0"), EXCHANGE, 8.5, 9.5),
)
WINDOW = [(0.0, 10.0)]


def test_one_update_by_hand():
    config = compose(["schedule=sync"])
    shares = resources(config, timeline(*UPDATE), WINDOW)
    assert shares["learner"] == pytest.approx({"busy": 0.35, "blocked": 0.1, "idle": 0.55})
    assert shares["engine"] == pytest.approx({"busy": 0.3, "blocked": 0.1, "idle": 0.6})
    # 20 slot seconds: 3 + 1 of work; alive without work 2 + 3; nothing to do 5 + 6.
    assert shares["sandbox"] == pytest.approx({"busy": 0.2, "blocked": 0.25, "idle": 0.55})
    assert idle(config, timeline(*UPDATE), WINDOW) == pytest.approx(
        {"learner": 0.65, "engine": 0.7, "devices": 0.675}
    )


def test_only_the_windows_count():
    """A parity check from 5 to 7 is no training: 8 s are left, 1.5 of them the learner's."""
    config = compose(["schedule=sync"])
    shares = resources(config, timeline(*UPDATE), [(0.0, 5.0), (7.0, 10.0)])
    assert shares["learner"] == pytest.approx({"busy": 1.5 / 8, "blocked": 1 / 8, "idle": 5.5 / 8})


def test_devices_weigh_what_they_are():
    config = compose(["schedule=sync", "schedule.engine_devices=3", "schedule.learner_devices=1"])
    assert idle(config, timeline(*UPDATE), WINDOW)["devices"] == pytest.approx((3 * 0.7 + 0.65) / 4)


def test_shared_devices_are_busy_when_either_is():
    """3 s of decoding and 3.5 of learning, one after the other, on the same devices."""
    config = compose(["schedule=sync", "schedule.placement=colocated"])
    assert idle(config, timeline(*UPDATE), WINDOW)["devices"] == pytest.approx(0.35)
    overlapping = timeline(*UPDATE, ("learner/0", "accumulate", 3.0, 5.0))
    assert idle(config, overlapping, WINDOW)["devices"] == pytest.approx(0.25)


def test_a_rank_that_never_worked_was_idle():
    config = compose(["learner.ranks=2", "schedule.learner_devices=2"])
    assert named(config, timeline(*UPDATE))["learner"] == ["learner/0", "learner/1"]
    shares = resources(config, timeline(*UPDATE), WINDOW)["learner"]
    assert shares == pytest.approx({"busy": 0.175, "blocked": 0.05, "idle": 0.775})
    together = compose(
        ["schedule=sync", "schedule.placement=colocated", "learner.ranks=2",
         "schedule.engine_devices=2", "schedule.learner_devices=2"]
    )  # fmt: skip
    # Of rank 0's device 6.5 of 10 s were used, of rank 1's the engine's 3.
    assert idle(together, timeline(*UPDATE), WINDOW)["devices"] == pytest.approx(1 - 9.5 / 20)


def test_without_training_there_is_nothing_to_share_out():
    config = compose([])
    nothing = {"busy": None, "blocked": None, "idle": None}
    assert resources(config, timeline(*UPDATE), []) == dict.fromkeys(
        ("learner", "engine", "sandbox"), nothing
    )
    assert idle(config, timeline(*UPDATE), []) == dict.fromkeys(("learner", "engine", "devices"))
    replayed = timeline(("engine/0", "generate", 1.0, 4.0))
    assert resources(config, replayed, WINDOW)["sandbox"] == nothing


def test_an_exchange_blocks_the_engine_and_every_rank_even_where_it_fails():
    found = Timeline(time.monotonic())
    with pytest.raises(KeyError), exchange(found, ranks=2):
        raise KeyError
    assert {(i.resource, i.name) for i in found.intervals} == {
        (blocked(name), EXCHANGE) for name in ("engine/0", "learner/0", "learner/1")
    }


SPANS = Ages().add((
    Trained(5, (VersionSpan(5, 0, 4),)),
    Trained(5, (VersionSpan(3, 0, 2), VersionSpan(4, 2, 8))),
    Trained(6, (VersionSpan(3, 0, 1), VersionSpan(6, 1, 4))),
))  # fmt: skip


def test_staleness_is_weighted_by_tokens_and_violations_are_counted():
    """Ages: 0 x4; 2 x2, 1 x6; 3 x1, 0 x3: 13 of 16 tokens."""
    assert staleness(SPANS, 1) == {
        "mean": 13 / 16, "max": 3, "violations": {"bound": 1, "tokens": 3, "trajectories": 2},
    }  # fmt: skip
    assert staleness(SPANS, 3)["violations"] == {"bound": 3, "tokens": 0, "trajectories": 0}
    assert staleness(SPANS, None)["violations"] is None
    assert staleness(Ages(), 0) == {
        "mean": None, "max": None, "violations": {"bound": 0, "tokens": 0, "trajectories": 0},
    }  # fmt: skip


def test_what_a_schedule_promises_bounds_its_staleness():
    config = compose([])
    promised = {}
    for name in ("sync", "stream", "one_step_off", "async"):
        config.schedule.name, config.schedule.max_staleness = name, None
        promised[name] = bound(config)
    assert promised == {"sync": 0, "stream": 0, "one_step_off": 1, "async": None}
    config.schedule.max_staleness = 4
    assert bound(config) == 4
