"""Accounts of real runs, held against their own timeline.json; turns taken on shared devices."""

from __future__ import annotations

import csv
import itertools
import json
import os
from collections import defaultdict

import pytest

from harness.timeline import length_s, overlap_s, union


@pytest.fixture(scope="module")
def colocated_job(run_job, tmp_path_factory):
    pin = len(os.sched_getaffinity(0)) >= 2
    return run_job(
        tmp_path_factory.mktemp("colocated"), "schedule=sync", "schedule.placement=colocated",
        "schedule.engine_devices=2", "schedule.learner_devices=2", f"cluster.pin_cores={pin}",
        "evaluation.initial=false", "evaluation.final=false", "tracking=none",
    )  # fmt: skip


@pytest.fixture(params=["stream", pytest.param("sync", marks=pytest.mark.slow), "colocated"])
def job(request):
    return request.getfixturevalue(f"{request.param}_job")


def tracks(job):
    """Track -> [(name, start, end)] in seconds of the run's clock."""
    events = json.loads((job.folder / "timeline.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            found[names[e["tid"]]].append((e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6))
    return found


def windows_of(intervals):
    return union((start, end) for _, start, end in intervals)


def window(job):
    """Of a run without parity checks: it has no pause."""
    with (job.folder / "updates.csv").open() as file:
        start = float(next(csv.DictReader(file))["started_s"])
    return start, start + job.summary["time"]["training_s"]


def test_every_kind_of_resource_adds_up_to_one(job):
    summary = job.summary
    for kind in ("learner", "engine", "sandbox"):
        shares = summary["resources"][kind]
        assert sum(shares.values()) == pytest.approx(1.0)
        assert shares["busy"] > 0 and shares["blocked"] > 0
    for kind in ("learner", "engine"):
        assert summary["idle"][kind] == pytest.approx(1 - summary["resources"][kind]["busy"])


def test_the_shares_are_those_of_the_recorded_timeline(sync_job):
    """Piece by piece between the edges of all intervals: what is true in the middle of a piece is
    true of all of it."""
    found, (began, ended) = tracks(sync_job), window(sync_job)
    slots = sorted(name for name in found if name.startswith("sandbox/"))
    assert len(slots) == 12  # three groups of four, all alive at once
    for kind, names in (("learner", ["learner/0"]), ("engine", ["engine/0"]), ("sandbox", slots)):
        seconds = {"busy": 0.0, "blocked": 0.0, "idle": 0.0}
        for name in names:
            busy, held = windows_of(found[name]), windows_of(found[f"blocked/{name}"])
            edges = {t for w in (*busy, *held, (began, ended)) for t in w if began <= t <= ended}
            ordered = sorted(edges)
            for left, right in itertools.pairwise(ordered):
                middle = (left + right) / 2
                works = any(a <= middle < b for a, b in busy)
                waits = any(a <= middle < b for a, b in held)
                seconds["busy" if works else "blocked" if waits else "idle"] += right - left
        total = sum(seconds.values())
        shares = {state: s / total for state, s in seconds.items()}
        assert sync_job.summary["resources"][kind] == pytest.approx(shares, abs=2e-3)


def test_on_shared_devices_engine_and_learner_never_work_at_once(colocated_job, stream_job):
    """Seconds of work, and no more than the rounding of two clocks' edges in common; a streaming
    run, measured alike, has plenty."""
    found = tracks(colocated_job)
    engine, learner = windows_of(found["engine/0"]), windows_of(found["learner/0"])
    assert length_s(engine) > 0.5 and length_s(learner) > 0.1
    assert overlap_s(engine, learner) < 0.005
    streamed = tracks(stream_job)
    both = overlap_s(windows_of(streamed["engine/0"]), windows_of(streamed["learner/0"]))
    assert both > 0.005


def test_shared_devices_are_counted_once(colocated_job, sync_job):
    summary = colocated_job.summary
    assert summary["placement"] == "colocated"
    manifest = json.loads((colocated_job.folder / "manifest.json").read_text())
    assert manifest["devices"] == {
        "placement": "colocated", "engine": 2, "learner": 2, "total": 2, "teacher": 0,
    }  # fmt: skip
    busy_s = summary["time"]["engine_busy_s"] + summary["time"]["learner_busy_s"]
    shared = 1 - busy_s / summary["time"]["training_s"]
    assert summary["idle"]["devices"] == pytest.approx(shared, abs=2e-3)
    apart = sync_job.summary["idle"]
    assert apart["devices"] == pytest.approx((apart["learner"] + apart["engine"]) / 2)


def test_other_trainers_figures_of_a_synchronous_run(sync_job):
    """Rollouter and trainer take turns: when one is idle, the other is not, but for the exchange of
    weights and the moments in which the schedule itself thinks."""
    verl = sync_job.summary["peers"]["verl"]
    assert 0 < verl["rollouter_idle_ratio"] < 1 and 0 < verl["trainer_idle_ratio"] < 1
    assert 0.98 < verl["rollouter_idle_ratio"] + verl["trainer_idle_ratio"] < 1.3
    assert sync_job.summary["staleness"]["violations"] == {
        "bound": 0, "tokens": 0, "trajectories": 0,
    }  # fmt: skip
    assert (verl["stale_trajectory_processed"], verl["max_partial_span"]) == (0, 0)
