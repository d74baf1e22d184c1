"""`release=turn`: what a schedule has in hand, what auto makes of it, and which settings refuse
it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from environments.swebench.config import SweBenchConfig
from harness.config import Config
from harness.overlap import FORWARD_SHARE, overlap
from harness.parts import turn_options
from harness.protocols import (
    Group,
    GroupClosed,
    Interval,
    RewardArrived,
    Trajectory,
    TrajectoryFinished,
    TrajectoryLost,
    Turn,
    TurnCosts,
    TurnGenerated,
    UsageError,
)
from harness.schedule_rules import check
from harness.timings import Costs, PassCost, UpdateTimings
from thundersync.hand import Hand
from thundersync.imagined_turns import Begun, beside, end_s, lengths
from thundersync.recorded import RecordedRun
from thundersync.release import choose, predict
from thundersync.stream import Stream


def running(name: str = "0-0", ends: tuple[int, ...] = (10, 30)) -> Trajectory:
    turns = [Turn(end - 4, end, 0.0, 0.0) for end in ends]
    group = int(name.split("-")[0])
    return Trajectory(name, "t", "easy", group, 0, 0, tokens_T=[1] * ends[-1], turns=turns)


def begun(hand: Hand, trajectory: Trajectory) -> None:
    hand.take(TurnGenerated(trajectory, 0))
    assert hand.next_turns(1) == {0: (trajectory, trajectory.turns[0].action_end)}


def test_only_the_turn_rung_hears_of_turns():
    for release in ("batch", "group", "reward", "submit"):
        hand = Hand(release)
        hand.take(TurnGenerated(running(), 0))
        assert hand.empty


def test_newer_turns_take_the_place_of_those_that_wait_for_the_learner():
    hand, first, other = Hand("turn"), running(), running("1-0")
    hand.take(TurnGenerated(first, 0))
    hand.take(TurnGenerated(other, 0))
    hand.take(TurnGenerated(first, 1))
    assert hand.next_turns(1) == {0: (first, 30)}
    assert hand.next_turns(1) == {0: (other, 10)}
    assert hand.empty


def test_each_rank_takes_the_turns_that_have_waited_longest_for_it():
    """A new trajectory goes where the fewest tokens are held, and stays there until it ends."""
    hand, long, short = Hand("turn"), running("0-0", (50, 60)), running("0-1", (10, 20))
    third, fourth = running("1-0", (30,)), running("1-1", (20,))
    for trajectory in (long, short, third):
        hand.take(TurnGenerated(trajectory, 0))
    assert hand.next_turns(2) == {0: (long, 50), 1: (short, 10)}
    hand.take(TurnGenerated(short, 1))
    hand.take(TurnGenerated(fourth, 0))
    assert hand.next_turns(2) == {1: (third, 30)}  # all that wait are of rank 1
    assert hand.next_turns(2) == {1: (short, 20), 0: (fourth, 20)}  # 50 tokens on each
    hand.take(TrajectoryFinished(long))
    hand.mark([long])
    assert [hand.seat(t) for t in (long, short, third, fourth)] == [None, 1, 1, 0]


def test_the_rest_of_a_finished_trajectory_comes_with_its_capture():
    hand, trajectory = Hand("turn"), running()
    hand.take(TurnGenerated(trajectory, 1))
    hand.take(TrajectoryFinished(trajectory))
    assert (hand.turns, hand.candidates) == ({}, [trajectory])


def test_a_lost_trajectory_gives_its_turns_up():
    hand, trajectory = Hand("turn"), running()
    begun(hand, trajectory)
    hand.take(TurnGenerated(trajectory, 1))
    hand.take(TrajectoryLost(trajectory, "start", False))
    assert not hand.empty
    assert hand.turns == {}
    assert hand.give_up(()) == ["0-0"]
    assert hand.empty


def test_a_captured_one_is_discarded_not_given_up():
    hand, trajectory = Hand("turn"), running()
    begun(hand, trajectory)
    hand.take(TrajectoryFinished(trajectory))
    hand.mark([trajectory])
    hand.take(TrajectoryLost(trajectory, "start", False))
    assert (hand.lost, hand.useless) == ([trajectory], [])


def test_what_a_closed_group_does_not_use_is_given_up():
    hand, used, unused, other = Hand("turn"), running(), running("0-1"), running("1-0")
    for trajectory in (used, unused, other):
        begun(hand, trajectory)
    hand.use(["0-0"])
    assert hand.give_up({0}) == ["0-1"]
    assert hand.begun == {"1-0": 1}


class Heard:
    """A learner that writes its verbs down."""

    def __init__(self) -> None:
        self.verbs: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        async def verb(*arguments: Any) -> None:
            self.verbs.append((name, arguments))

        return verb


def played(events: list[Any]) -> list[tuple[str, Any]]:
    """The learner's verbs under `turn`; at a None the schedule has time to work."""

    class Batch:
        def ready(self) -> list[Any]:
            taken: list[Any] = []
            while events and (event := events.pop(0)) is not None:
                taken.append(event)
            return taken

        async def next(self) -> None:
            return None

    learner, config = Heard(), Config()
    config.schedule.release, config.rollout.group_size = "turn", 2
    run = RecordedRun(learner, config, [])
    with pytest.raises(StopIteration):
        cast(Any, Stream(config).play(cast(Any, run), cast(Any, Batch()), "turn")).send(None)
    return learner.verbs


def test_closed_groups_go_before_captures_and_captures_before_turns():
    """And a degenerate group's turns are given up before anything is accumulated."""
    closed = [running("0-0"), running("0-1")]
    for trajectory in closed:
        trajectory.reward = 1.0
    verbs = played([
        TurnGenerated(closed[0], 0), None, TurnGenerated(running("1-0"), 0),
        TrajectoryFinished(running("2-0")), RewardArrived(closed[0]), RewardArrived(closed[1]),
        GroupClosed(Group(0, "t", "easy", closed)),
    ])  # fmt: skip
    assert [name for name, _ in verbs] == ["extend", "abandon", "capture", "extend"]
    assert verbs[1][1] == (["0-0"],)


def test_what_is_lost_amid_its_turns_is_given_up_by_the_learner():
    lost = running("0-0")
    verbs = played([TurnGenerated(lost, 0), None, TrajectoryLost(lost, "start", False)])
    assert [name for name, _ in verbs] == ["extend", "abandon"]
    assert verbs[1][1] == (["0-0"],)


# -- auto ------------------------------------------------------------------------------------------

LINEAR = PassCost(0.0, 0.01)  # of a whole sequence: 1 s for 100 tokens


def turn_costs(backward_pass_s: float, retain_from: int = 0) -> TurnCosts:
    """A forward pass is a third of a whole one, a backward pass of a turn's own takes
    `backward_pass_s` to start."""
    forward = PassCost(0.0, 0.01 / 3)
    return TurnCosts(
        LINEAR, forward, forward, PassCost(backward_pass_s, 0.02 / 3), LINEAR, retain_from, 1e3
    )


def update_of(costs: TurnCosts | None) -> UpdateTimings:
    """One group of two, of four turns of 25 tokens each; both end at 10 s."""
    made = []
    for i in range(2):
        turns = [Turn(25 * n + 20, 25 * n + 25, 0.0, 50 + 2.0 * n + 2) for n in range(4)]
        made.append(
            Trajectory(
                f"0-{i}",
                "t",
                "easy",
                0,
                i,
                0,
                tokens_T=[1] * 100,
                reward=float(i),
                end="submit",
                turns=turns,
                finished_s=60.0,
                reward_s=60.5,
            )
        )
    passes = [
        Interval("learner/0", "accumulate", 0, LINEAR.seconds(n), {"trajectories": [], "padded": n})
        for n in (100, 300)
    ]
    return UpdateTimings(
        [Group(0, "t", "easy", made)], 50.0, 60.5, 0.0, passes, "group", 1_000_000, None, costs
    )


def auto() -> Stream:
    config = Config()
    config.schedule.release = "auto"
    return Stream(config)


def run_of(update: UpdateTimings) -> Any:
    config = Config()
    config.schedule.release, config.rollout.group_size = "auto", 2
    run = RecordedRun(cast(Any, None), config, [])
    run.timings.add(update)
    return run


def test_turns_shorten_the_tail_by_their_forward_passes():
    """By hand: submit takes 2 x 1 s after second 10, turns 2 x 2/3 s."""
    update = update_of(turn_costs(0.0))
    run, stream = run_of(update), auto()
    costs = run.timings.costs()
    assert predict(stream.play, run, update, "submit", costs).end_s == pytest.approx(12.0)
    found = predict(stream.play, run, update, "turn", costs)
    assert found.end_s == pytest.approx(10 + 4 / 3)
    assert found.live_bytes == pytest.approx(2 * 100 * 1e3)
    choice = choose(stream.play, run)
    assert choice.release == "turn"
    assert "a trajectory's end 1000.0 ms whole and 666.7 ms by turns (of 25 tokens" in choice.why


def test_where_a_turns_backward_pass_costs_too_much_auto_takes_submit_and_says_so():
    update = update_of(turn_costs(0.1))
    run = run_of(update)
    choice = choose(auto().play, run)
    assert choice.release == "submit"
    assert "1000.0 ms whole and 1066.7 ms by turns" in choice.why
    assert "submit 12.00, turn 12.13" in choice.why


def test_what_was_not_measured_is_not_considered():
    update = update_of(None)
    choice = choose(auto().play, run_of(update))
    assert choice.release == "submit"
    assert "turn" not in choice.why


def test_costs_of_turns_are_on_the_scale_of_the_runs_own_passes():
    """The machine is twice as slow as it was at start."""
    slow = Costs(PassCost(0.0, 0.02), PassCost(0.0, 0.02), 0.0, turn_costs(0.1, retain_from=7))
    found = beside(slow, [running()])
    assert found.backward.pass_s == pytest.approx(0.2)
    assert found.backward.token_s == pytest.approx(0.04 / 3)
    assert found.retain_from == 7


def test_short_turns_are_run_again():
    costs = turn_costs(0.1, retain_from=20)
    trajectory = running(ends=(10, 30, 60))
    assert list(lengths(trajectory)) == [10, 20, 30]
    held = Begun()
    for end in (10, 30, 60):
        held.extend(costs, trajectory, end)
    # 20 and 30 are kept; 10 and the 5 that come at the end are run again in one pass.
    assert held.left_s(costs, 65) == pytest.approx(0.15 + 2 * 0.1 + 50 * 0.02 / 3)


def test_complete_sequences_leave_nothing_for_the_end():
    """Turns of 10, 20 and 30 tokens, the last two of contexts of their own."""
    costs = turn_costs(0.1)
    trajectory = running(ends=(10, 30, 60))
    trajectory.rewritten_at = [10, 30]
    held = Begun()
    took_s = [held.extend(costs, trajectory, end) for end in (10, 30, 60)]
    forward, back = 0.01 / 3, 0.02 / 3
    assert took_s == pytest.approx(
        [10 * forward, 20 * forward + 0.1 + 10 * back, 30 * forward + 0.1 + 20 * back]
    )
    assert held.left_s(costs, 60) == end_s(costs, trajectory) == pytest.approx(0.1 + 30 * back)
    assert held.live_bytes(costs) == 30 * costs.live_bytes


def test_the_bound_lets_a_turns_forward_part_start_when_its_tokens_are_there():
    update = replace(update_of(None), release="turn")
    found = overlap(update, {"0-0": 9.0, "0-1": 9.0}, fold_s=0.25)
    assert found is not None
    # Backward parts, 2 x 6 s, start at second 10; without turns it would be 18 s.
    assert found.t_star_s == pytest.approx(10 + 2 * 9.0 * (1 - FORWARD_SHARE))


def test_where_only_turns_were_passed_a_pass_is_all_that_a_trajectory_took():
    """Lost trajectories, which have no end, tell nothing."""
    passes = [
        Interval("learner/0", name, 0.0, seconds, {"trajectories": [i], "padded": padded})
        for name, i, padded, seconds in (
            ("extend", "0-0", 50, 0.3), ("extend", "0-1", 60, 0.5), ("extend", "0-1-lost", 9, 7.0),
            ("finish", "0-0", 100, 0.7), ("finish", "0-1", 300, 2.5),
        )
    ]  # fmt: skip
    update = replace(update_of(None), intervals=passes)
    assert update.by_turns() == [(100, 1.0), (300, 3.0)]
    found = run_of(update).timings.costs()
    assert found.capture.seconds(200) == pytest.approx(2.0)
    assert found.accumulate == found.capture


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"learner.ranks": 2}, "learner.ranks=2: a running trajectory's turns stay in one process"),
        ({"learner.device": "cuda"}, "learner.device=cuda: turn gradients were never run"),
        ({"objective.name": "opd", "objective.discount": 0.5},
         "objective.discount=0.5: a token's weight needs the turns that follow"),
        ({"objective.importance.kind": "truncate", "objective.importance.level": "sequence"},
         "objective.importance.level=sequence: a token's weight needs all"),
        ({"objective.importance.kind": "truncate", "objective.clip.kind": "gspo",
          "objective.clip.form": "sequence"}, "objective.clip.form=sequence: a token's weight is"),
    ],
    ids=["ranks", "cuda", "discount", "sequence_ratio", "gspo_sequence"],
)  # fmt: skip
def test_what_needs_whole_trajectories_is_refused_for_turn_and_left_out_by_auto(
    settings: dict[str, Any], line: str
):
    config = Config(env=SweBenchConfig())
    config.schedule.name, config.schedule.release = "stream", "turn"
    assert turn_options(config) is not None
    for key, value in settings.items():
        *path, leaf = key.split(".")
        target: Any = config
        for part in path:
            target = getattr(target, part)
        setattr(target, leaf, value)
    with pytest.raises(UsageError) as refused:
        check(config)
    assert str(refused.value).startswith(line)
    assert str(refused.value).endswith("or schedule.release=submit")
    config.schedule.release = "auto"
    check(config)
    assert turn_options(config) is None


def test_other_rungs_start_no_turns():
    config = Config()
    for release in ("batch", "group", "reward", "submit", None):
        config.schedule.release = release
        assert turn_options(config) is None
