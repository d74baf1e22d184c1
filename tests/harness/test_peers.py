"""Other trainers' figures by hand."""

from __future__ import annotations

import pytest

from harness.accounting import ALIVE, EXCHANGE, Ages, Trained
from harness.peers import areal, peers, prime_rl, verl, version_windows
from harness.protocols import Interval, VersionSpan
from harness.timeline import Timeline, blocked

ENGINE = blocked("engine/0")


def timeline(*intervals: tuple[str, str, float, float]) -> Timeline:
    found = Timeline(100.0)
    for resource, name, start_s, end_s in intervals:
        found.add(Interval(resource, name, 100.0 + start_s, 100.0 + end_s))
    return found


# Two synchronous updates of ten seconds, and a third batch that was discarded. Rollouts until 4 and
# until 16; the learner then works 4 s and 2 s; weights are loaded within 1 s and 2 s.
SYNC = timeline(
    ("blocked/sandbox/00", ALIVE, 0.0, 3.0),
    ("blocked/sandbox/01", ALIVE, 0.5, 4.0),
    ("learner/0", "accumulate", 4.5, 8.0),
    ("learner/0", "step", 8.0, 8.5),
    (ENGINE, EXCHANGE, 9.0, 10.0),
    ("blocked/sandbox/00", ALIVE, 10.0, 16.0),
    ("learner/0", "accumulate", 16.0, 18.0),
    (ENGINE, EXCHANGE, 18.0, 20.0),
    ("blocked/sandbox/00", ALIVE, 20.0, 30.0),
)
WINDOWS = [(100.0, 130.0)]


def test_versions_end_where_their_weights_are_loaded():
    assert version_windows(SYNC, WINDOWS) == [(100.0, 110.0), (110.0, 120.0)]
    assert version_windows(timeline(), WINDOWS) == []
    assert version_windows(SYNC, []) == []


def test_idle_ratios_of_a_synchronous_run():
    """Trainer: 10 - 4 - 1 = 5 of 10 s waited for samples, then 6. Rollouter: quiet from 4 to 10,
    then from 16 to 20."""
    found = verl(SYNC, 1, WINDOWS, Ages())
    assert found["trainer_idle_ratio"] == pytest.approx((0.5 + 0.6) / 2)
    assert found["rollouter_idle_ratio"] == pytest.approx((0.6 + 0.4) / 2)


def test_a_parity_check_is_in_no_ratio():
    """From 5 to 7 of the first version: 8 s are left; of them 2 of work and 1 of exchange; quiet
    from 4 to 5 and from 7 to 10."""
    found = verl(SYNC, 1, [(100.0, 105.0), (107.0, 130.0)], Ages())
    assert found["trainer_idle_ratio"] == pytest.approx((5 / 8 + 0.6) / 2)
    assert found["rollouter_idle_ratio"] == pytest.approx((4 / 8 + 0.4) / 2)


def test_an_asynchronous_rollouter_is_idle_only_past_its_bound():
    """Rollouts go on through the first load; in the second version they stop at 18 of 20. A pause
    inside a version (6 to 7) is not verl's idle: it counts from the last one."""
    found = verl(
        timeline(
            ("blocked/sandbox/00", ALIVE, 0.0, 6.0),
            ("blocked/sandbox/00", ALIVE, 7.0, 12.0),
            ("blocked/sandbox/01", ALIVE, 11.0, 18.0),
            ("learner/0", "accumulate", 0.0, 9.0),
            ("learner/1", "accumulate", 10.0, 14.0),
            (ENGINE, EXCHANGE, 9.0, 10.0),
            (ENGINE, EXCHANGE, 19.0, 20.0),
        ),
        2,
        WINDOWS,
        Ages(),
    )
    assert found["rollouter_idle_ratio"] == pytest.approx((0.0 + 0.2) / 2)
    assert found["trainer_idle_ratio"] == pytest.approx((0.0 + 0.5) / 2)


TRAINED = Ages().add((
    Trained(5, (VersionSpan(5, 0, 4),)),
    Trained(5, (VersionSpan(3, 0, 2), VersionSpan(4, 2, 8))),
    Trained(6, (VersionSpan(3, 0, 1), VersionSpan(6, 1, 4))),
    Trained(6, ()),  # without a generated token
))  # fmt: skip


def test_staleness_by_each_definition():
    found = verl(SYNC, 1, WINDOWS, TRAINED)
    # Newest tokens: 0, 1 and 0 versions old: one trajectory counts as stale.
    assert found["stale_trajectory_processed"] == 1
    # Of each trajectory by tokens: 0, (2*2 + 6*1) / 8 and 3*1 / 4.
    assert found["trajectory_staleness_mean"] == pytest.approx((0 + 1.25 + 0.75) / 3)
    assert found["trajectory_staleness_max"] == 3
    assert found["partial_ratio"] == pytest.approx(2 / 3)
    assert found["max_partial_span"] == 3
    # First tokens: 0, 2 and 3 versions old.
    assert areal(TRAINED) == {
        "head_offpolicyness_mean": pytest.approx(5 / 3), "head_offpolicyness_max": 3,
    }  # fmt: skip
    # Weight updates during the rollout: 0, 1 and 3.
    assert prime_rl(TRAINED) == {
        "off_policy_level_mean": pytest.approx(4 / 3), "off_policy_level_max": 3,
    }  # fmt: skip


def test_nothing_trained_gives_no_figure():
    found = peers(timeline(), 1, [], Ages())
    values = [value for part in found.values() for value in part.values()]
    assert {*values} == {None, 0}
    assert found["verl"]["stale_trajectory_processed"] == 0
