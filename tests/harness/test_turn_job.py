"""`schedule.release=turn` as a whole job: real sandboxes, trajectories begun while they run."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness.records import SCHEMA_PATH
from harness.sequences import spans
from harness.trajectory_lines import read

QUIET = ("evaluation.initial=false", "evaluation.final=false")
# A distillation; the agent sees its last two turns, so that most are sequences of their own.
REWRITTEN = (
    "objective=opd", "schedule=stream", "schedule.release=turn", "rollout.history_turns=2",
    "rollout.groups_per_batch=2", "budget.limit=1", *QUIET,
)  # fmt: skip


@pytest.fixture(scope="module")
def turn_job(run_job: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("turn")
    return run_job(
        folder, *REWRITTEN, "rollout.group_size=2", "rollout.max_turns=6", "tracking=none"
    )


def intervals(folder: Path, name: str) -> list[dict[str, Any]]:
    trace = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    return [e for e in trace if e["ph"] == "X" and e["name"] == name]


@pytest.mark.slow  # 22 synchronous updates
def test_the_update_is_the_synchronous_one(run_job, tmp_path: Path):
    job = run_job(tmp_path, *REWRITTEN, "parity.every=1", "parity.permutations=20")
    parity = job.summary["parity"]
    assert (parity["checked"], parity["permutations"]) == (1, 20)
    error, control = parity["gradient_relative_error_max"], parity["control_relative_error_max"]
    assert 0 < error <= 3 * control
    assert control < 1e-5  # which would be no rounding
    assert parity["ok"] is True


def test_old_turns_are_elided_and_every_token_is_scored(turn_job):
    trajectories = [t for t, _ in read(turn_job.folder / "trajectories.jsonl")]
    longer = [t for t in trajectories if len(t.turns) > 3]
    assert longer
    for t in longer:
        assert len(spans(t)) == len(t.turns) - 2
        assert t.teacher is not None
        assert len(t.teacher.logprobs_N) == t.action_tokens
    assert all(not t.rewritten_at for t in trajectories if len(t.turns) <= 3)


def test_the_learner_works_while_tool_calls_run(turn_job):
    extended = intervals(turn_job.folder, "extend")
    assert extended
    for lane in intervals(turn_job.folder, "finish"):
        assert len(lane["args"]["trajectories"]) == 1
    (row,) = csv.DictReader((turn_job.folder / "updates.csv").open())
    assert 0 < int(row["turns_trajectories"]) <= 4
    assert int(row["turns_retained_tokens"]) + int(row["turns_rerun_tokens"]) > 0
    assert float(row["gradient_norm"]) > 0.0


def test_the_summary_says_what_was_held(turn_job):
    summary = turn_job.summary
    jsonschema.validate(summary, json.loads(SCHEMA_PATH.read_text()))
    assert summary["release"] == "turn"
    assert summary["segments"]["trajectories"] > 0
    assert (summary["segments"]["way"], summary["segments"]["fallbacks"]) == ("auto", 0)


def test_it_is_learnt_again_to_the_bit(turn_job):
    done = subprocess.run(
        [sys.executable, "-m", "harness.relearn", f"run={turn_job.folder}"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bit_identical"] is True


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("objective=grpo", "schedule.release=turn", "segments.way=retain"),
        ("objective=grpo", "schedule.release=turn", "segments.max_live_bytes=1000000"),
        ("objective=grpo", "schedule=async", "rollout.history_turns=1"),
        ("objective=opd", "schedule=sync", "rollout.history_turns=1", "objective.discount=0.5"),
        ("objective=opd", "schedule.release=turn", "budget.kind=wall_clock_s", "budget.limit=20"),
    ],
    ids=["grpo", "bounded", "async_elided", "sync_elided", "time_budget"],
)
def test_every_schedule_takes_turns_or_elided_histories(
    overrides: tuple[str, ...], run_job, tmp_path: Path
):
    job = run_job(tmp_path, *overrides, *QUIET)
    assert job.summary["status"] == "finished"
    assert job.summary["trajectories_lost"] == 0
    if "segments.max_live_bytes=1000000" in overrides:
        assert job.summary["segments"]["fallbacks"] > 0
        first = job.summary["segments"]["first_fallback"]
        assert first.endswith("exceed segments.max_live_bytes=1000000")
