"""The controlled comparison on a small recording: real engine and learner processes."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness import paired
from harness.config import ClusterConfig
from harness.paired import (
    Variant,
    describe,
    learners_config,
    parse,
    play,
    ratio_interval,
    report,
    table,
)
from harness.paired_options import recording, split
from harness.protocols import UsageError

UPDATES = 2
SHAPE = ("rollout.group_size=4", "rollout.groups_per_batch=3")  # the recording's


@pytest.fixture(scope="module")
def played(small_recording: Path) -> dict[str, Variant]:
    configs, updates, workload = parse(
        [
            f"replay={small_recording}", f"updates={UPDATES}", *SHAPE,
            "a=schedule=sync", "b=schedule=stream,schedule.release=reward",
            "c=schedule=stream,schedule.release=auto",
        ]
    )  # fmt: skip
    assert (updates, workload) == (UPDATES, "recorded")
    variants = {letter: Variant(config) for letter, config in configs.items()}
    recorded, updates = recording(configs["a"], updates)
    asyncio.run(play(list(variants.values()), recorded, updates, workload))
    return variants


def test_every_update_is_played_under_every_variant_in_rotated_order(played):
    versions = [[row["version"] for row in variant.rows] for variant in played.values()]
    # Three unmeasured updates first; then a, b, c and b, c, a: the weights go on from one to the
    # next.
    assert versions == [[4, 9], [5, 7], [6, 8]]
    trained = {row["tokens_trained"] for variant in played.values() for row in variant.rows}
    assert len(trained) == 1


def test_the_rungs_played_are_those_asked_for_and_auto_says_why(played):
    sync, stream, auto = played.values()
    assert {row["release"] for row in sync.rows} == {"batch"}
    assert {row["release"] for row in stream.rows} == {"reward"}
    assert {row["release_why"] for row in (*sync.rows, *stream.rows)} == {""}
    for row in auto.rows:  # the unmeasured update has measured what a choice rests on
        assert row["release_why"].startswith(f"release={row['release']}: predicted seconds")
        assert "MB free" in row["release_why"]
    assert stream.rows[0]["ledger_buffers_peak"] >= 1


def test_bounds_are_computed_from_what_the_synchronous_passes_took(played):
    sync, *streams = played.values()
    for number in range(UPDATES):
        passes = sync.timings.updates[number + 1].measured_s()
        work_s = math.fsum(passes.values())
        assert work_s == pytest.approx(sync.rows[number]["learner_busy_s"], rel=0.5)
        for variant in streams:
            row = variant.rows[number]
            assert row["t_sync_s"] == pytest.approx(row["rollout_s"] + work_s)
            assert row["rollout_s"] <= row["t_star_s"] <= row["t_sync_s"]
            assert row["rollout_s"] <= row["t_s"] < row["per_update_s"]
            efficiency = (row["t_sync_s"] - row["t_s"]) / (row["t_sync_s"] - row["t_star_s"])
            assert row["overlap_efficiency"] in (None, pytest.approx(efficiency))
        row = sync.rows[number]
        assert row["overlap_efficiency"] is None
        assert row["t_star_s"] == row["t_sync_s"]


def test_the_report_has_every_figure_and_is_json(played):
    found = json.loads(json.dumps(report(played, "recorded", 2), allow_nan=False))
    assert found["updates"] == UPDATES
    assert found["recorded_updates"] == 2
    assert found["pinned"] is True
    assert found["workload_says"] == "the recording's own timings"
    a, b, c = found["variants"].values()
    assert a["first_over_this"] is None
    assert a["overlap_efficiency"] is None
    for variant in (b, c):
        ratio = variant["first_over_this"]
        assert ratio["low_95"] <= ratio["ratio"] <= ratio["high_95"]
    assert sum(c["release_played"].values()) == UPDATES
    assert b["ledger_buffers_peak"] >= 1
    assert (a["decide_s"], b["decide_s"]) == (None, None)
    assert 0 < c["decide_s"] < c["per_update_s"]
    for variant, played_one in zip((a, b, c), played.values(), strict=True):
        mean_s = math.fsum(row["per_update_s"] for row in played_one.rows) / UPDATES
        assert variant["per_update_s"] == pytest.approx(mean_s)
        assert 0 <= variant["idle_learner"] <= 1
    lines = table(found)
    assert lines[0].endswith("; pinned: true")
    assert table(found | {"pinned": False})[0].endswith("; pinned: false")
    assert len(lines) == 2 + 3 + 1
    assert lines[-1].startswith("tail, first / this: a 1, b ")
    assert all(f" {name}" in line for name, line in zip(("sync", "stream", "stream"),
               lines[2:5], strict=True))  # fmt: skip
    assert f"x{UPDATES}" in lines[2]
    assert lines[4].endswith(f"decided in {c['decide_s']:.3f} s")


def test_the_ratio_is_of_pairs(played):
    first, second, _ = played.values()
    ratio = describe(second, first)["first_over_this"]["ratio"]
    logs = [
        math.log(a["per_update_s"] / b["per_update_s"])
        for a, b in zip(first.rows, second.rows, strict=True)
    ]
    assert ratio == pytest.approx(math.exp(math.fsum(logs) / UPDATES))


def test_the_tail_has_a_ratio_of_its_own(played):
    first, second, _ = played.values()
    found = describe(second, first)["tail_first_over_this"]["ratio"]
    logs = [math.log(a["tail_s"] / b["tail_s"])
            for a, b in zip(first.rows, second.rows, strict=True)]  # fmt: skip
    assert found == pytest.approx(math.exp(math.fsum(logs) / UPDATES))
    assert describe(first, first)["tail_first_over_this"] is None


def test_the_one_learner_takes_turns_where_any_variant_does(small_recording):
    configs, *_ = parse(
        [f"replay={small_recording}", *SHAPE, "a=schedule=sync",
         "b=schedule=stream,schedule.release=auto", "c=schedule=stream,schedule.release=turn"]
    )  # fmt: skip
    variants = [Variant(config) for config in configs.values()]
    assert learners_config(variants).schedule.release == "turn"
    assert learners_config(variants[:2]).schedule.release == "auto"
    assert learners_config(variants[:1]).schedule.release == "batch"


def test_the_interval_by_hand():
    """Log ratios ln 2 -+ 0.1: standard error 0.1, one degree of freedom, t = 12.7062."""
    found = ratio_interval([2 * math.exp(0.1), 2 * math.exp(-0.1)], [1, 1])
    assert found["ratio"] == pytest.approx(2)
    assert found["high_95"] == pytest.approx(2 * math.exp(1.27062), rel=1e-5)
    assert found["low_95"] == pytest.approx(2 / math.exp(1.27062), rel=1e-5)


def test_sync_against_stream_is_what_nobody_asked_otherwise(small_recording):
    configs, updates, workload = parse([f"replay={small_recording}"])
    assert [(k, c.schedule.name) for k, c in configs.items()] == [("a", "sync"), ("b", "stream")]
    assert (updates, workload) == (None, "recorded")
    assert all(c.cluster.pin_cores for c in configs.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["updates=1"], "updates=1: a whole number of at least 2"),
        (["workload=quick"], "workload=quick: not available; there is: recorded, long_ver"),
        (["a=schedule=sync"], "a=...: give two variants or more"),
        (["a=schedule=sync", "b=schedule=stream,seed=3"], "seed=0 under a, 3 under b"),
        (["a=", "b=schedule=stream"], "a=: an empty variant; give its overrides: a=schedule=sync"),
        (["a=schedule=sync", "z=schedule=stream"], "z=schedule=stream: no such variant; a to h"),
        (["agent=oracle"], "agent=oracle: harness.paired trains the policy"),
        (
            ["a=schedule=sync", "b=schedule=async"],
            "schedule=async: harness.paired plays one update",
        ),
        (["parity.every=2"], "parity.every=2: harness.paired checks no parity"),
        (["replay=null"], "replay=null: give a run's trajectories.jsonl"),
        (["replay=nowhere.jsonl"], "replay=nowhere.jsonl: no such file"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(small_recording, arguments, message, capsys,
                                                        monkeypatch):  # fmt: skip
    given = [f"replay={small_recording}", *arguments]
    if arguments[0].startswith("replay"):
        given = arguments
    with pytest.raises(UsageError) as raised:
        parse(given)
    assert message in str(raised.value)
    monkeypatch.setattr(sys, "argv", ["paired", *given])
    assert paired.main() == 2
    captured = capsys.readouterr()
    assert captured.err == f"error: {raised.value}\n"
    assert captured.out == ""


def test_no_recorded_update_is_played_twice(small_recording, tmp_path, capsys, monkeypatch):
    """A repeat is no independent pair; without `updates` it is what was recorded."""
    given = [f"replay={small_recording}", *SHAPE]
    configs, updates, _ = parse(given)
    recorded, updates = recording(configs["a"], updates)
    assert updates == len(recorded) == 2
    monkeypatch.setattr(sys, "argv", ["paired", *given, "updates=3"])
    assert paired.main() == 2
    assert capsys.readouterr().err == (
        f"error: updates=3: replay={small_recording} has 2 whole updates, and a repeat tells "
        "nothing new; give updates=2 or fewer\n"
    )
    lines = small_recording.read_text().splitlines(keepends=True)
    one = tmp_path / "one.jsonl"
    one.write_text("".join(line for line in lines if json.loads(line)["batch"] == 0))
    configs, updates, _ = parse([f"replay={one}", *SHAPE])
    with pytest.raises(UsageError, match="1 whole update in it"):
        recording(configs["a"], updates)


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ("schedule=sync", ["schedule=sync"]),
        ("schedule=stream,seed=1", ["schedule=stream", "seed=1"]),
        ("x=[a,b],seed=1", ["x=[a,b]", "seed=1"]),
        ("x={a:1,b:[2,3]},y='p,q'", ["x={a:1,b:[2,3]}", "y='p,q'"]),
    ],
)
def test_a_variant_is_split_at_commas_outside_brackets(overrides, parts):
    assert split(overrides) == parts


def test_what_is_not_pinned_is_said(played):
    config = replace(played["a"].config, cluster=ClusterConfig(pin_cores=False))
    unpinned = Variant(config)
    unpinned.rows, unpinned.timings = played["a"].rows, played["a"].timings
    assert report({"a": unpinned}, "recorded", 2)["pinned"] is False
