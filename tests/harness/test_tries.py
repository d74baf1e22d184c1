"""How often a trajectory is tried in a run that goes on."""

from __future__ import annotations

from harness.config import RolloutConfig
from harness.protocols import Trajectory
from harness.tries import Tries

LIMITS = RolloutConfig(group_size=2, groups_per_batch=2, retries=2)


def ended(group: int, index: int, lost: int, judged: bool = False) -> list[Trajectory]:
    made = [Trajectory("", "", "", group, index, 0, attempt) for attempt in range(lost + judged)]
    for trajectory in made[:lost]:
        trajectory.infrastructure_error = "engine"
    return made


def test_a_run_that_begins_has_its_retries() -> None:
    assert Tries([], LIMITS).last(7, 1) == 2


def test_what_is_left_of_them_is_left_to_a_run_that_goes_on() -> None:
    tries = Tries([*ended(4, 0, lost=2), *ended(4, 1, lost=1, judged=True)], LIMITS)
    assert (tries.last(4, 0), tries.last(4, 1)) == (2, 1)


def test_a_group_that_was_dropped_stays_so() -> None:
    tries = Tries([*ended(4, 0, lost=3), *ended(5, 0, lost=2)], LIMITS)
    assert (tries.last(4, 0), tries.last(5, 0)) == (2, 2)


def test_a_whole_update_that_was_lost_is_tried_again() -> None:
    """Each time that a run ended of it, and only what was lost for good."""
    lost = [*ended(4, 0, lost=3), *ended(4, 1, lost=0, judged=True), *ended(5, 1, lost=3)]
    tries = Tries(lost, LIMITS)
    assert [tries.last(*p) for p in ((4, 0), (4, 1), (5, 0), (5, 1))] == [5, 0, 2, 5]
    under_way = Tries([*ended(4, 0, lost=4), *ended(5, 1, lost=3, judged=True)], LIMITS)
    assert (under_way.last(4, 0), under_way.last(5, 1)) == (5, 3)
    twice = Tries([*ended(4, 0, lost=6), *ended(5, 1, lost=6)], LIMITS)
    assert (twice.last(4, 0), twice.last(5, 1)) == (8, 8)
