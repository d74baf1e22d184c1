"""Schedules without boundaries of batches as whole jobs: python -m harness.run schedule=async."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path

import jsonschema
import pytest

from harness.records import SCHEMA_PATH
from harness.trajectory_lines import read


def replayed(run_job, tmp_path: Path, recording: Path, *overrides: str) -> tuple[str, list[str]]:
    """(hash of the last weights, each update's groups) of a replay."""
    job = run_job(
        tmp_path, f"replay={recording}", "budget.limit=2", "tracking=none", *overrides
    )  # fmt: skip
    weights = sorted((job.folder / "checkpoints").rglob("*.safetensors"))[-1]
    with (job.folder / "updates.csv").open() as file:
        groups = [row["groups"] for row in csv.DictReader(file)]
    return hashlib.sha256(weights.read_bytes()).hexdigest(), groups


def test_a_bound_of_0_reproduces_sync_bit_for_bit_in_recorded_order(
    run_job, tmp_path, small_recording
):
    """verl#6780. With weights in between that another order would give, the bits would differ."""
    found = {}
    for name, overrides in {
        "sync": ["schedule=sync"],
        "zero": ["schedule=async", "schedule.max_staleness=0", "schedule.correction=null"],
    }.items():
        (tmp_path / name).mkdir()
        found[name] = replayed(run_job, tmp_path / name, small_recording, *overrides)
    assert found["zero"] == found["sync"]
    assert found["sync"][1] == ["0 1 2", "3 4 5"]


@pytest.mark.slow
def test_a_bound_of_1_replays_as_many_updates(run_job, tmp_path, small_recording):
    stale = ["schedule=async", "schedule.max_staleness=1", "schedule.correction=null"]
    assert len(replayed(run_job, tmp_path, small_recording, *stale)[1]) == 2


@pytest.mark.parametrize(
    ("overrides", "most"),
    [
        (["schedule=async", "schedule.max_staleness=2", "schedule.partial_rollout=true"], 2),
        pytest.param(["schedule=one_step_off"], 1, marks=pytest.mark.slow),
    ],
    ids=["async", "one_step_off"],
)
def test_rollouts_and_learner_overlap_and_staleness_is_recorded(run_job, tmp_path, overrides, most):
    job = run_job(
        tmp_path, *overrides, "budget.limit=4", "evaluation.initial=false", "evaluation.tasks=2",
        "tracking=none",
    )  # fmt: skip
    summary = job.summary
    jsonschema.validate(summary, json.loads(SCHEMA_PATH.read_text()))
    assert (summary["status"], summary["updates"], summary["release"]) == ("finished", 4, None)
    assert 0 < summary["staleness"]["mean"] <= summary["staleness"]["max"] <= most
    assert summary["staleness"]["violations"] == {"bound": most, "tokens": 0, "trajectories": 0}
    assert summary["sandboxes"]["created"] == summary["sandboxes"]["removed"]
    # Staleness again, from the files alone: versions of the tokens, and which update took them.
    with (job.folder / "updates.csv").open() as file:
        rows = list(csv.DictReader(file))
    taken = {int(g): k for k, row in enumerate(rows) for g in row["groups"].split()}
    ages = [
        (taken[t.group] - span.version, span.end - span.start)
        for t, _ in read(job.folder / "trajectories.jsonl")
        if t.group in taken and t.reward is not None
        for span in t.version_spans
    ]
    tokens = sum(n for _, n in ages)
    assert tokens == summary["tokens_trained"]
    assert sum(a * n for a, n in ages) / tokens == pytest.approx(summary["staleness"]["mean"])
    # ROLL#394: the engine generates while the learner computes.
    trace = json.loads((job.folder / "timeline.json").read_text())["traceEvents"]
    spans = {"generate": [], "accumulate": []}
    for event in trace:
        if event.get("ph") == "X" and event["name"] in spans:
            spans[event["name"]].append((event["ts"], event["ts"] + event["dur"]))
    assert any(a < d and c < b for a, b in spans["generate"] for c, d in spans["accumulate"])
