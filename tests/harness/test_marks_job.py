"""Marks change no bit of the training, and a budget that ends inside a batch says what it cost."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

ALONE = ("evaluation.initial=false", "evaluation.final=false", "tracking=none")


@pytest.mark.slow
def test_marks_change_no_bit_of_the_training(
    run_job: Callable, small_recording: Path, tmp_path: Path
):
    """The same recorded rollouts under sync, whose verbs do not depend on the clock."""
    weights = {}
    for name, marks in (("without", "[]"), ("with", "[0.5]")):
        (tmp_path / name).mkdir()
        job = run_job(
            tmp_path / name, *ALONE, "schedule=sync", f"replay={small_recording}",
            "evaluation.keep_snapshots=true", f"evaluation.marks={marks}",
        )  # fmt: skip
        checkpoints = job.folder / "checkpoints"
        weights[name] = {f.name: f.read_bytes() for f in checkpoints.iterdir()}
    last, kept = "weights-000002.safetensors", "snapshot-000001.safetensors"
    assert sorted(weights["without"]) == [last]
    assert sorted(weights["with"]) == [kept, last]
    assert weights["without"][last] == weights["with"][last]
    assert weights["with"][kept] != weights["with"][last]


@pytest.mark.slow
def test_a_budget_of_tokens_that_ends_inside_a_batch_is_accounted_for(
    run_job: Callable, tmp_path: Path
):
    """Live: every token that the engine made is in an update, discarded, or said not to be counted;
    the last published weights are evaluated."""
    job = run_job(
        tmp_path, "schedule=stream", "budget.kind=tokens", "budget.limit=1500",
        "evaluation.initial=false", "evaluation.tasks=2",
    )  # fmt: skip
    summary = job.summary
    spent, discarded = summary["budget"]["spent"], summary["budget"]["discarded"]
    assert 1500 <= spent < 1500 + 10 * 32
    with (job.folder / "updates.csv").open() as file:
        updates = sum(int(row["tokens_generated"]) for row in csv.DictReader(file))
    assert summary["tokens_generated"] == spent == updates + discarded["tokens"]
    assert discarded["unfinished"] > 0
    assert discarded["tokens_not_counted"] >= 0
    assert summary["accuracy"]["final"] is not None
    assert "what no update was made of is discarded" in job.stderr
    assert summary["sandboxes"]["leaked"] == 0
