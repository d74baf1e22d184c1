"""The learner on paper: its times by hand, its order, and its counts against the real ledger's."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from harness import lengths
from harness.learner.counted import CountedLedger, CountError
from harness.learner.simulated import SimulatedLearner
from harness.protocols import FoldSpec, Trajectory
from harness.virtual import VirtualClock
from thundersync.ledger import GradientLedger, LedgerError


def trajectory(name: str, tokens: int, group: int = 0, reward: float | None = None) -> Trajectory:
    found = Trajectory(name, "t", "easy", group, 0, 0, reward=reward)
    lengths.extend(found, tokens, generated=True)
    return found


class World:
    def __init__(self, costs: Any, ranks: int = 1, chunk_tokens: int = 100, **extra: Any) -> None:
        self.clock = VirtualClock()
        self.learner = SimulatedLearner(
            costs, self.clock, ranks=ranks, chunk_tokens=chunk_tokens, learning_rate=1e-3,
            form="auto", bucket_cap=8, **extra,
        )  # fmt: skip

    def play(self, *verbs: Any) -> list[Any]:
        """Verbs one after the other; what they returned."""

        async def main() -> list[Any]:
            return [await verb for verb in verbs]

        return self.clock.run(main())


def test_an_update_takes_the_sum_of_its_verbs(toy: Any) -> None:
    world = World(toy(chunk=10, overhead=3, fold=2, optimizer=50, publication=70))
    a, b = trajectory("a", 5, reward=1.0), trajectory("b", 6, reward=0.0)
    late = trajectory("late", 7, group=1)
    learner = world.learner
    world.play(
        learner.capture([a, b]),  # two rewards, two passes: (10 + 5 + 3) + (10 + 6 + 3)
        learner.capture([late]),  # 10 + 7 + 3
        learner.discard(["late"]),
        learner.fold(FoldSpec(0, {"a": (1.0, 1.0), "b": (0.0, -1.0)})),  # 2 buffers: 4
        learner.accumulate([trajectory("c", 8), trajectory("d", 9)], [0.5, 0.0]),  # 10 + 8
    )
    assert world.clock.now() == 37 + 20 + 4 + 18
    stats, published = world.play(learner.step(3.0), learner.publish())
    assert world.clock.now() == 79 + 50 + 70
    assert (stats.version, stats.ledger_buffers_peak, stats.ledger_bytes_peak) == (1, 3, 300)
    assert published == ("virtual-weights-000001", 1)
    (intervals,) = world.play(learner.drain_intervals())
    assert [(i.name, i.start_s, i.end_s) for i in intervals] == [
        ("capture", 0, 18), ("capture", 18, 37), ("capture", 37, 57), ("fold", 57, 61),
        ("accumulate", 61, 79), ("step", 79, 129), ("publish", 129, 199),
    ]  # fmt: skip
    assert intervals[4].args == {
        "trajectories": ["c"], "groups": [0], "tokens": 8, "padded": 8
    }  # fmt: skip


def test_ranks_work_side_by_side_in_passes_of_at_most_a_chunk(toy: Any) -> None:
    """30, 20 and 40 tokens over two ranks: [30, 20] and [40]; a chunk holds 40, so that rank 0 has
    two passes, and the second begins when both ranks are done with the first."""
    world = World(toy(chunk=1), ranks=2, chunk_tokens=40)
    rows = [trajectory("a", 30), trajectory("b", 20), trajectory("c", 40)]
    world.play(world.learner.accumulate(rows, [1.0, 1.0, 1.0]))
    (intervals,) = world.play(world.learner.drain_intervals())
    assert [(i.resource, i.args["trajectories"], i.start_s, i.end_s) for i in intervals] == [
        ("learner/0", ["b"], 0, 21), ("learner/1", ["c"], 0, 41), ("learner/0", ["a"], 41, 72),
    ]  # fmt: skip


def test_a_rank_whose_only_capture_was_discarded_does_not_fold(toy: Any) -> None:
    world = World(toy(fold=2), ranks=2)
    lost, again = trajectory("0-0", 5), trajectory("0-0-r1", 5, reward=0.0)
    kept = trajectory("0-1", 5, reward=1.0)
    learner = world.learner
    world.play(
        learner.capture([lost, kept]),  # one on each rank
        learner.discard(["0-0"]),
        learner.accumulate([again], [-1.0]),
    )
    before_s = world.clock.now()
    world.play(learner.fold(FoldSpec(0, {"0-0-r1": (0.0, -1.0), "0-1": (1.0, 1.0)})))
    assert world.clock.now() == before_s + 2
    world.play(learner.step(1.0))


def test_a_turn_that_was_passed_forward_is_not_passed_again(toy: Any) -> None:
    """Forward passes: 12 tokens 3 s, 8 more 2 s; what is left of 20 is 20 - 5."""
    world = World(toy())
    whole = trajectory("a", 20, reward=1.0)
    world.play(world.learner.extend({0: (whole, 12)}), world.learner.extend({0: (whole, 20)}))
    assert world.clock.now() == 5
    world.play(world.learner.accumulate([whole], [1.0]))
    assert world.clock.now() == 20
    other = trajectory("b", 20)
    world.play(
        world.learner.extend({0: (other, 20)}),
        world.learner.abandon(["b"]),
        world.learner.accumulate([other], [1.0]),
    )
    assert world.clock.now() == 45


def test_turns_stay_on_the_rank_that_took_the_first(toy: Any) -> None:
    """Forward passes side by side, 2 + 3 and 2 + 5 s. What is left of a, 20 - 5 and another pass,
    and of b, 40 - 10 and another, is done by their own ranks; c, which nobody has begun, goes to
    the rank with fewer tokens, which takes it in a pass before."""
    world = World(toy(chunk=2), ranks=2)
    a, b = trajectory("a", 24, 0, 1.0), trajectory("b", 40, 1, 1.0)
    c = trajectory("c", 5, 2, 0.0)
    world.play(world.learner.extend({1: (a, 12), 0: (b, 20)}))
    assert world.clock.now() == 7
    with pytest.raises(ValueError, match="a: its turns are on rank 1, not on 0"):
        world.play(world.learner.extend({0: (a, 20)}))
    world.play(world.learner.accumulate([a, b, c], [1.0, 1.0, 1.0]))
    stats, intervals = world.play(world.learner.step(1.0), world.learner.drain_intervals())
    assert [(i.resource, i.name, i.start_s, i.end_s) for i in intervals[:5]] == [
        ("learner/1", "extend", 0, 5), ("learner/0", "extend", 0, 7),
        ("learner/0", "finish", 7, 44),
        ("learner/1", "accumulate", 7, 14), ("learner/1", "finish", 14, 37),
    ]  # fmt: skip
    assert (stats.turns.trajectories, stats.turns.retained_tokens) == (2, 32)
    assert stats.turns.live_bytes_peak == 20 * 10  # of a rank


def test_what_a_rank_cannot_hold_is_taken_whole(toy: Any) -> None:
    """Ten bytes a token: 20 tokens fit, so that b's first 12 stay on their own rank and a, which
    grows past it, is forgotten; what it took until then was for nothing."""
    world = World(toy(), ranks=1, max_live_bytes=200)
    a, b = trajectory("a", 40, 0, 1.0), trajectory("b", 16, 0, 0.0)
    learner = world.learner
    world.play(learner.extend({0: (a, 8)}), learner.extend({0: (b, 12)}))
    assert world.clock.now() == 2 + 3
    world.play(learner.extend({0: (a, 20)}), learner.extend({0: (a, 30)}))
    assert world.clock.now() == 5
    world.play(learner.accumulate([a, b], [1.0, 1.0]))
    assert world.clock.now() == 5 + 40 + (16 - 3)
    (stats,) = world.play(learner.step(1.0))
    assert (stats.turns.fallbacks, stats.turns.live_bytes_peak) == (1, 200)
    assert stats.turns.fallback.startswith("a: 320 bytes on rank 0, more than")


def test_turns_under_way_are_refused_at_the_step(toy: Any) -> None:
    world = World(toy())
    with pytest.raises(ValueError, match="turns of a were neither used nor given up"):
        world.play(world.learner.extend({0: (trajectory("a", 8), 4)}), world.learner.step(1.0))


def test_shared_devices_are_handed_over_twice_an_update(toy: Any) -> None:
    world = World(toy(optimizer=1, publication=1), switch_s=10)
    for update in (1, 2):
        world.play(
            world.learner.accumulate([trajectory("a", 5)], [1.0]),
            world.learner.step(1.0),
            world.learner.publish(),
        )
        assert world.clock.now() == update * (10 + 5 + 1 + 1 + 10)


@pytest.mark.parametrize(
    ("verbs", "says"),
    [
        (lambda x: [x.commit("a", 1.0)], "a: no pending capture to commit"),
        (lambda x: [x.discard(["a"])], "a: no pending capture to discard"),
        (lambda x: [x.fold(FoldSpec(3, {}))], "group 3: nothing was committed"),
        (lambda x: [x.capture([trajectory("a", 1)]), x.capture([trajectory("a", 1)])], "before"),
        (lambda x: [x.capture([trajectory("a", 1)]), x.step(1.0)], r"pending \['a'\]"),
        (lambda x: [x.capture([trajectory("a", 1, 4, 1.0)]), x.step(1.0)], r"groups \[4\]"),
        (
            lambda x: [
                x.capture([trajectory("a", 1, 4, 1.0)]),
                x.fold(FoldSpec(4, {"a": (0.0, 1.0)})),
            ],
            "a: committed with reward 1.0, closed otherwise",
        ),
        (lambda x: [x.parity_begin(1.0)], "no gradients to compare"),
    ],
)
def test_the_wrong_order_is_refused(toy: Any, verbs: Any, says: str) -> None:
    world = World(toy())
    with pytest.raises(ValueError, match=says):
        world.play(*verbs(world.learner))


class Both:
    """The same verbs on the real ledger and on the counted one."""

    def __init__(self, form: Any, cap: int) -> None:
        self.real = GradientLedger(form, bucket_cap=cap)
        self.counted = CountedLedger(form, cap, buffer_bytes=12)
        self.total = [torch.zeros(3)]

    def do(self, verb: str, real: tuple[Any, ...], counted: tuple[Any, ...]) -> bool:
        """Whether both took it; they must agree."""
        refused = []
        for ledger, arguments, error in (
            (self.real, real, LedgerError), (self.counted, counted, CountError)
        ):  # fmt: skip
            try:
                getattr(ledger, verb)(*arguments)
                refused.append(False)
            except error:
                refused.append(True)
        assert refused[0] == refused[1], verb
        return not refused[0]


@pytest.mark.parametrize("form", ["auto", "affine", "bucket"])
@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_the_real_ledger(form: str, seed: int) -> None:
    """Random verbs, some of them out of order: both refuse the same, and their peaks are equal."""
    draw = random.Random(seed)
    both = Both(form, cap=3)
    rewards: dict[str, tuple[int, float]] = {}
    pending: dict[str, int] = {}
    for n in range(60):
        act = draw.random()
        if act < 0.45:
            group, name = draw.randrange(3), f"t{n if draw.random() < 0.95 else 0}"
            gradient = [torch.full((3,), float(n + 1))]
            if both.do("capture", (group, [name], gradient), (group, [name])):
                pending[name] = group
        elif act < 0.8 and pending:
            name = draw.choice(sorted(pending))
            reward = float(draw.randrange(3))
            if not both.do("commit", ([name], reward), ([name], reward)):
                return  # past the cap of distinct rewards: what is left is not specified
            rewards[name] = pending.pop(name), reward
        elif act < 0.9 and pending:
            name = draw.choice(sorted(pending))
            both.do("discard", ([name],), ([name],))
            del pending[name]
        else:
            group = draw.randrange(3)
            known = {k: (r, r - 1.0) for k, (g, r) in rewards.items() if g == group}
            both.do("fold", (group, known, both.total), (group, known))
            rewards = {k: v for k, v in rewards.items() if v[0] != group}
        assert both.counted.buffers_peak == both.real.buffers_peak
        assert both.counted.bytes_peak == both.real.bytes_peak
