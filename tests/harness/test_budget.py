"""The rule for what is in flight when a budget ends, event by event."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.budget import Budget, BudgetEnded, uncounted_tokens
from harness.clock import WallClock
from harness.config import BudgetConfig
from harness.protocols import (
    Event,
    Group,
    GroupClosed,
    Interval,
    RewardArrived,
    Trajectory,
    TrajectoryFinished,
    TrajectoryLost,
    Turn,
    TurnFinished,
)


class Still(WallClock):
    at_s = 0.0

    def now(self) -> float:
        return self.at_s


def a_budget(kind: str, limit: float, groups: int = 1, size: int = 4) -> tuple[Budget, list]:
    """A budget with groups under way, and what it told them."""
    budget = Budget(BudgetConfig(kind, limit), devices=2, clock=Still())
    budget.start()
    told: list[BaseException] = []
    budget.reaches(told.append)
    for group in range(groups):
        budget.opened(group, size)
    return budget, told


def life(group: int, index: int, attempt: int = 0) -> Trajectory:
    return Trajectory(f"{group}-{index}-r{attempt}", "t", "easy", group, index, 0, attempt)


def turn(trajectory: Trajectory, tokens: int) -> TurnFinished:
    """One more turn of so many generated tokens."""
    generate(trajectory, tokens)
    return TurnFinished(trajectory, len(trajectory.turns) - 1)


def generate(trajectory: Trajectory, tokens: int) -> None:
    """A turn whose tool call is still under way."""
    start = len(trajectory.tokens_T)
    trajectory.tokens_T += [5] * tokens
    trajectory.action_mask_T += [1] * tokens
    trajectory.turns.append(Turn(start, start + tokens, 0.0, 0.0))


def test_a_budget_of_trajectories_ends_the_batch_where_others_are_under_way():
    budget, told = a_budget("trajectories", 2)
    lives = [life(0, i) for i in range(4)]
    budget.count(turn(lives[3], 7))
    budget.count(RewardArrived(lives[0]))
    assert (budget.over, told) == (False, [])
    budget.count(RewardArrived(lives[1]))
    assert budget.over
    (error,) = told
    assert isinstance(error, BudgetEnded)
    assert str(error) == "budget.trajectories=2 is spent"
    budget.count(RewardArrived(lives[2]))  # too late: it had been ended
    budget.count(turn(lives[3], 9))
    assert (budget.spent, budget.counters.tokens, len(told)) == (2, 7, 1)
    assert budget.discarded == {"trajectories": 2, "unfinished": 2, "tokens": 7, "seconds": 0.0}


@pytest.mark.parametrize("limit", [4, 3.5])
def test_the_last_trajectory_makes_the_update(limit):
    budget, told = a_budget("trajectories", limit)
    for i in range(4):
        budget.count(RewardArrived(life(0, i)))
    budget.count(GroupClosed(Group(0, "t", "easy")))
    assert (budget.over, told, budget.exhausted) == (False, [], True)
    budget.updated([Group(0, "t", "easy")])
    assert budget.discarded == {"trajectories": 0, "unfinished": 0, "tokens": 0, "seconds": 0.0}
    assert budget.without_update() is None


def test_the_last_one_that_generates_may_end_beyond_a_budget_of_tokens():
    """Verifiers of the others spend nothing of it."""
    budget, told = a_budget("tokens", 10, size=2)
    first, last = life(0, 0), life(0, 1)
    for event in (turn(first, 4), TrajectoryFinished(first), turn(last, 6), turn(last, 5)):
        budget.count(event)
    assert (budget.spent, budget.over) == (15, False)
    for event in (TrajectoryFinished(last), RewardArrived(last), RewardArrived(first)):
        budget.count(event)
    assert (budget.over, told) == (False, [])


def test_a_budget_of_tokens_ends_where_another_still_generates():
    budget, told = a_budget("tokens", 10, size=2)
    budget.count(turn(life(0, 0), 4))
    budget.count(turn(life(0, 1), 6))
    assert budget.over and len(told) == 1
    assert budget.discarded["unfinished"] == 2


def test_who_starts_again_is_another_life():
    """It would cost a second trajectory: the one that reached the limit may only end."""
    budget, _ = a_budget("tokens", 10, size=1)
    only = life(0, 0)
    budget.count(turn(only, 12))
    assert not budget.over
    budget.count(TrajectoryLost(only, "start", final=False))
    assert budget.over


def test_a_trajectory_lost_in_verification_may_not_start_again():
    budget, _ = a_budget("tokens", 10, size=2)
    first, last = life(0, 0), life(0, 1)
    for event in (turn(first, 4), TrajectoryFinished(first), turn(last, 6)):
        budget.count(event)
    budget.count(TrajectoryFinished(last))
    assert not budget.over
    budget.count(TrajectoryLost(first, "parser", final=False))
    assert budget.over


def test_losing_the_others_for_good_lets_the_last_one_end():
    budget, told = a_budget("tokens", 10, size=2)
    first, last = life(0, 0), life(0, 1)
    budget.count(turn(first, 4))
    budget.count(TrajectoryLost(first, "start", final=True))
    budget.count(turn(last, 6))
    assert (budget.over, told) == (False, [])
    assert budget.discarded["unfinished"] == 1  # the last one; the lost one is not under way


def test_a_lost_attempt_s_tokens_count_once_and_whole():
    """Its last turn had been generated, its tool call failed: TurnFinished never came."""
    budget, _ = a_budget("tokens", 1000)
    lost = life(0, 2)
    budget.count(turn(lost, 4))
    generate(lost, 3)
    budget.count(TrajectoryLost(lost, "exec_transport", final=False))
    again = life(0, 2, attempt=1)
    budget.count(turn(again, 4))
    assert budget.spent == 11
    budget.count(TrajectoryFinished(again))
    budget.count(TrajectoryLost(again, "parser", final=True))
    assert budget.spent == 11


@pytest.mark.parametrize("kind", ["updates", "wall_clock_s", "device_s"])
def test_other_budgets_do_not_end_by_events(kind):
    budget, told = a_budget(kind, 1)
    budget.counters.updates = 5
    assert isinstance(budget._clock, Still)
    budget._clock.at_s = 50.0
    budget.count(RewardArrived(life(0, 0)))
    assert (budget.exhausted, budget.over, told) == (True, False, [])


def test_what_was_discarded_is_what_no_update_was_made_of():
    """Two updates' groups overlap, as they do without batches: each has its own share."""
    budget, _ = a_budget("device_s", 100, groups=2, size=1)
    assert isinstance(budget._clock, Still)
    budget.count(turn(life(0, 0), 5))
    budget.count(turn(life(1, 0), 3))
    budget.count(RewardArrived(life(0, 0)))
    budget._clock.at_s = 20.0
    with budget.paused("snapshot"):
        budget._clock.at_s = 22.0
    budget.updated([Group(0, "t", "easy")])
    budget.count(turn(life(1, 0), 2))
    budget._clock.at_s = 50.0
    assert budget.discarded == {"trajectories": 0, "unfinished": 1, "tokens": 5, "seconds": 28.0}
    assert (budget.spent, budget.counters.tokens) == (96.0, 10)
    with budget.paused():
        budget._clock.at_s = 51.5
    assert budget.counters.paused_s == {"snapshot": 2.0, "parity": 1.5}


def test_a_budget_too_small_for_an_update_is_said_before_and_after():
    budget, _ = a_budget("trajectories", 3)
    said = budget.shortfall(4)
    assert said is not None and "budget.limit=3 trajectories cannot make one update" in said
    assert budget.shortfall(3) is None
    assert a_budget("tokens", 3)[0].shortfall(4) is not None
    assert a_budget("updates", 1)[0].shortfall(400) is None
    assert budget.without_update() is None  # not yet
    for i in range(3):
        budget.count(RewardArrived(life(0, i)))
    said = budget.without_update()
    assert said is not None and "spent before the first update" in said
    budget.updated([])
    assert budget.without_update() is None


def test_tokens_of_unfinished_turns_are_the_engine_s_less_those_counted():
    made = [
        Interval("engine/0", "generate", 0.0, 1.0, {"generated_tokens": 7, "prompt_tokens": 99}),
        Interval("engine/1", "generate", 0.0, 1.0, {"generated_tokens": 5}),
        Interval("learner/0", "step", 0.0, 1.0),
    ]
    assert uncounted_tokens(made, 10) == 2
    assert uncounted_tokens(made[2:], 10) is None


def story(draw: random.Random, group: int, index: int) -> Iterator[Event]:
    """All that happens to one trajectory, infrastructure failures included."""
    for attempt in range(3):
        trajectory = life(group, index, attempt)
        for _ in range(draw.randrange(4)):
            yield turn(trajectory, draw.randrange(1, 6))
        finished = draw.random() < 0.8
        if finished:
            yield TrajectoryFinished(trajectory)
        if finished and draw.random() < 0.8:
            yield RewardArrived(trajectory)
            return
        generate(trajectory, draw.randrange(3))
        yield TrajectoryLost(trajectory, "start", final=attempt == 2)


@given(
    kind=st.sampled_from(["trajectories", "tokens"]), limit=st.integers(1, 60),
    groups=st.integers(1, 3), size=st.integers(1, 4), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_no_more_is_spent_than_the_limit_and_one_trajectory(kind, limit, groups, size, seed):
    """In any order of events: either the batch was ended and nothing else counts, or everything
    came to its end, beyond the limit by what the one that reached it still needed."""
    budget, told = a_budget(kind, limit, groups, size)
    draw = random.Random(seed)
    stories = {(g, i): story(draw, g, i) for g in range(groups) for i in range(size)}
    largest = 1
    while stories and not budget.over:
        place = draw.choice(sorted(stories))
        event = next(stories[place], None)
        if event is None:
            del stories[place]
            continue
        before = budget.spent
        budget.count(event)
        assert budget.spent >= before
        if kind == "tokens" and not isinstance(event, GroupClosed):
            largest = max(largest, event.trajectory.action_tokens)
    # An attempt that starts again after the limit is never let go on.
    assert budget.spent <= limit + largest - (kind == "trajectories")
    assert budget.over == bool(told)
    if budget.over:
        assert budget.spent >= limit
        assert stories
    assert budget.discarded["tokens"] == budget.counters.tokens
    assert budget.discarded["trajectories"] == budget.counters.trajectories
