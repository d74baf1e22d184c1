"""Recorded trajectories played back: tokens as they were, delays as they were or as a workload has
them."""

from __future__ import annotations

import asyncio
import gzip
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from harness.accounting import ALIVE
from harness.batch import start
from harness.clock import WallClock
from harness.config import RolloutConfig
from harness.protocols import (
    Completion,
    Event,
    Generation,
    GroupClosed,
    Interval,
    RewardArrived,
    Trajectory,
    TrajectoryFinished,
    TurnFinished,
    TurnGenerated,
    UsageError,
    VersionSpan,
)
from harness.replay import Replay, whole_batches
from harness.trajectory_lines import decode
from harness.workload import WORKLOADS, transform

RECORDED = Path(__file__).parents[1] / "thundersync" / "data" / "recorded.jsonl.gz"
SHRINK = 0.02  # of the recorded delays
VERSION = 7
RECORDED_WITH = RolloutConfig(group_size=8, groups_per_batch=3)


class Echo:
    """An engine that makes the forced tokens at once, and writes down what it was asked."""

    def __init__(self) -> None:
        self.requests: list[Generation] = []
        self.released: list[str] = []

    async def generate(self, request: Generation) -> Completion:
        self.requests.append(request)
        tokens = list(request.forced_T or ())
        spans = [VersionSpan(VERSION, 0, len(tokens))]
        return Completion(tokens, [0.0] * len(tokens), spans, "stop")

    async def release(self, session: str) -> None:
        self.released.append(session)


def lines(change: Callable[[dict[str, Any]], None] = lambda line: None) -> list[dict[str, Any]]:
    """Three groups of eight, their delays shrunk."""
    with gzip.open(RECORDED, "rt") as file:
        made = [json.loads(text) for text in file]
    for line in made:
        line["sandbox_start_s"] *= SHRINK
        line["reward_s"] = line["finished_s"] + SHRINK * (line["reward_s"] - line["finished_s"])
        for turn in line["turns"]:
            turn["exec_s"] *= SHRINK
        change(line)
    return made


def write(folder: Path, made: list[dict[str, Any]]) -> Path:
    path = folder / "trajectories.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in made))
    return path


def play(path: Path, index: int = 0) -> tuple[Any, list[Event], Echo]:
    """The finished batch, its events in order, and the engine that served it."""

    async def body() -> tuple[Any, list[Event], Echo]:
        engine = Echo()
        recorded = whole_batches(path, RECORDED_WITH)
        replay = Replay(recorded, cast(Any, engine), WallClock(), 1.0)
        tasks = [cast(Any, None)] * RECORDED_WITH.groups_per_batch
        batch = start(replay.begin, index, VERSION, tasks, 0, WallClock())
        events = []
        while (event := await batch.next()) is not None:
            events.append(event)
        return batch, events, engine

    return asyncio.run(body())


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[Event], Echo]:
    return play(write(tmp_path_factory.mktemp("recording"), lines()))


@pytest.fixture(scope="module")
def originals() -> dict[tuple[str, int], Trajectory]:
    return {(t.task_id, t.index): t for t in map(decode, lines())}


def of_batch(batch: Any) -> list[Trajectory]:
    return [t for group in batch.groups for t in group.trajectories]


def test_the_engine_is_asked_for_the_recorded_tokens_and_nothing_else(played, originals):
    batch, _, engine = played
    trajectories = {t.trajectory_id: t for t in of_batch(batch)}
    assert len(trajectories) == 24
    asked: dict[str, int] = dict.fromkeys(trajectories, 0)
    for request in engine.requests:
        t = trajectories[request.session]
        original = originals[t.task_id, t.index]
        turn = original.turns[asked[request.session]]
        asked[request.session] += 1
        assert request.prompt_T == original.tokens_T[: turn.action_start]
        assert request.forced_T == original.tokens_T[turn.action_start : turn.action_end]
        assert request.seed == original.seed
    for name, t in trajectories.items():
        original = originals[t.task_id, t.index]
        assert asked[name] == len(original.turns) == len(t.turns)
        assert (t.tokens_T, t.action_mask_T) == (original.tokens_T, original.action_mask_T)
        assert (t.reward, t.end) == (original.reward, original.end)
        assert [(s.version, s.start, s.end) for s in t.version_spans] == [
            (VERSION, turn.action_start, turn.action_end) for turn in original.turns
        ]
    assert sorted(engine.released) == sorted(trajectories)


def test_delays_are_the_recorded_ones(played, originals):
    slack_s = 0.002  # of the event loop's timer
    for t in of_batch(played[0]):
        original = originals[t.task_id, t.index]
        assert t.turns[0].started_s - t.started_s >= original.sandbox_start_s - slack_s
        for turn, recorded in zip(t.turns, original.turns, strict=True):
            assert turn.finished_s - turn.generated_s >= recorded.exec_s - slack_s
        judged_s = original.reward_s - original.finished_s
        assert t.reward_s - t.finished_s >= judged_s - slack_s
        assert t.verify_s == original.verify_s


def test_a_replay_leaves_the_lives_of_its_trajectories(tmp_path):
    """No sandbox is busy; lives are counted where other trainers' idle ratios are computed."""

    async def body() -> tuple[list[Trajectory], list[Interval], float]:
        clock = WallClock()
        recorded = whole_batches(write(tmp_path, lines()), RECORDED_WITH)
        replay = Replay(recorded, cast(Any, Echo()), clock, 1.0, origin_s=clock.origin_s)
        tasks = [cast(Any, None)] * RECORDED_WITH.groups_per_batch
        batch = start(replay.begin, 0, VERSION, tasks, 0, clock)
        while await batch.next() is not None:
            pass
        return of_batch(batch), replay.take_intervals(), clock.origin_s

    trajectories, lives, origin_s = asyncio.run(body())
    assert {i.name for i in lives} == {ALIVE}
    assert len({i.resource for i in lives}) == len(lives) == 24  # all alive at once
    assert sorted(i.start_s - origin_s for i in lives) == pytest.approx(
        sorted(t.started_s for t in trajectories), abs=0.05
    )
    assert max(i.end_s for i in lives) - origin_s == pytest.approx(
        max(t.reward_s for t in trajectories), abs=0.05
    )


def test_events_happen_in_the_order_of_a_live_rollout(played):
    batch, events, _ = played
    for t in of_batch(batch):
        own = [e for e in events if getattr(e, "trajectory", None) is t]
        assert [type(e) for e in own] == [TurnGenerated, TurnFinished] * len(t.turns) + [
            TrajectoryFinished, RewardArrived,
        ]  # fmt: skip
        (closed,) = [
            n for n, e in enumerate(events)
            if isinstance(e, GroupClosed) and e.group.group == t.group
        ]  # fmt: skip
        assert events.index(own[-1]) < closed
    assert isinstance(events[-1], GroupClosed)


def test_only_whole_batches_are_played_and_they_repeat(tmp_path):
    made = lines()
    second = [line | {"batch": 1} for line in made[1:]]  # lacks a trajectory
    third = [line | {"batch": 2, "reward": 1.0} for line in made]
    lost = made[0] | {"reward": None, "infrastructure_error": "exec_transport", "attempt": 0}
    path = write(tmp_path, [*third, *second, lost, *made])
    rewards = [[t.reward for t in of_batch(play(path, index)[0])] for index in range(3)]
    assert set(rewards[1]) == {1.0}
    assert rewards[0] == rewards[2] != rewards[1]
    assert {t.group for t in of_batch(play(path, 2)[0])} == {6, 7, 8}


def test_a_recording_without_a_verdict_is_refused(tmp_path):
    path = write(tmp_path, lines(lambda line: line.update(reward=None)))
    with pytest.raises(UsageError, match="no judged trajectory"):
        whole_batches(path, RECORDED_WITH)


@pytest.mark.parametrize(("size", "count"), [(4, 3), (8, 8)])
def test_a_recording_of_another_group_size_or_count_is_refused(tmp_path, size, count):
    """Both values are named, and the overrides to give."""
    path = write(tmp_path, lines())
    with pytest.raises(UsageError) as raised:
        whole_batches(path, RolloutConfig(group_size=size, groups_per_batch=count))
    assert str(raised.value) == (
        f"rollout.group_size={size} rollout.groups_per_batch={count}: replay={path} was recorded "
        "with 3 groups of 8; give rollout.group_size=8 rollout.groups_per_batch=3"
    )


def test_a_recording_without_a_whole_batch_is_refused(tmp_path):
    made = lines()
    second = [line | {"batch": 1} for line in made if line["group"] != made[0]["group"]]
    path = write(tmp_path, [*made[1:], *second])
    with pytest.raises(UsageError, match="none of its 2 batches has 3 groups of 8"):
        whole_batches(path, RECORDED_WITH)


def batches() -> dict[int, dict[int, list[Trajectory]]]:
    found: dict[int, dict[int, list[Trajectory]]] = {0: {}}
    for t in map(decode, lines()):
        found[0].setdefault(t.group, []).append(t)
    return found


def test_the_recorded_workload_changes_nothing():
    assert transform(batches(), "recorded", seed=0) == batches()


def test_long_verification_draws_one_time_per_group_for_submitted_trajectories_alone():
    before, after = batches(), transform(batches(), "long_verification", seed=0)
    drawn_s = set()
    for group, originals in before[0].items():
        for old, new in zip(originals, after[0][group], strict=True):
            if old.end != "submit":
                assert new == old
                continue
            assert replace(new, verify_s=old.verify_s, reward_s=old.reward_s) == old
            assert new.reward_s - new.finished_s == pytest.approx(new.verify_s)
            drawn_s.add((group, new.verify_s))
    assert len(drawn_s) == len({s for _, s in drawn_s}) == len(before[0])
    assert 2.5 < statistics.median(s for _, s in drawn_s) < 6
    assert after == transform(batches(), "long_verification", seed=0)
    assert after != transform(batches(), "long_verification", seed=1)


def test_correlated_groups_have_one_factor_each_between_1_and_8():
    before, after = batches(), transform(batches(), "correlated_groups", seed=0)
    factors = []
    for group, originals in before[0].items():
        seen = set()
        for old, new in zip(originals, after[0][group], strict=True):
            seen.add(round(new.sandbox_start_s / old.sandbox_start_s, 6))
            ratios = [n.exec_s / o.exec_s for n, o in zip(new.turns, old.turns, strict=True)
                      if o.exec_s]  # fmt: skip
            seen |= {round(ratio, 6) for ratio in ratios}
            assert new.reward_s - new.finished_s == old.reward_s - old.finished_s
        (factor,) = seen
        factors.append(factor)
    assert sorted(factors) == pytest.approx([1.0, 8**0.5, 8.0], rel=1e-5)
    assert all(workload.says for workload in WORKLOADS.values())


def test_long_tool_calls_are_drawn_for_each_turn_that_had_one():
    before, after = batches(), transform(batches(), "long_tool_calls", seed=0)
    drawn_s = []
    for group, originals in before[0].items():
        for old, new in zip(originals, after[0][group], strict=True):
            assert [replace(n, exec_s=o.exec_s) for n, o in zip(new.turns, old.turns, strict=True)
                    ] == old.turns  # fmt: skip
            assert replace(new, turns=old.turns) == old
            drawn_s += [n.exec_s for n, o in zip(new.turns, old.turns, strict=True) if o.exec_s]
            assert all(n.exec_s == 0 for n, o in zip(new.turns, old.turns, strict=True)
                       if not o.exec_s)  # fmt: skip
    assert len(set(drawn_s)) == len(drawn_s)
    assert 1.2 < statistics.median(drawn_s) < 3.5
    assert max(drawn_s) > 5


def test_a_recording_under_a_kl_in_the_reward_is_refused(tmp_path):
    """Its rewards contain a KL to weights that are gone."""
    path = write(tmp_path, lines(lambda line: line["report"].update(kl_penalty=0.1)))
    with pytest.raises(UsageError, match=r"recorded under objective\.kl\.place=reward"):
        whole_batches(path, RECORDED_WITH)
