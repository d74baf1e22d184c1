"""On-policy distillation as a whole job: real sandboxes, a teacher in a process of its own."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness.objectives.opd import reverse_kl
from harness.records import SCHEMA_PATH
from harness.trajectory_lines import read


@pytest.fixture(scope="module")
def opd_job(run_job: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Groups of three: no advantage is needed, and none is degenerate."""
    return run_job(
        tmp_path_factory.mktemp("opd"), "objective=opd", "schedule=stream",
        "schedule.release=submit", "parity.every=1", "parity.permutations=2",
        "evaluation.initial=false", "evaluation.final=false", "tracking=none",
    )  # fmt: skip


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "updates.csv").open()))


def test_every_trained_token_was_scored_and_the_rows_say_what_came_of_it(opd_job):
    trajectories = [(t, line["batch"]) for t, line in read(opd_job.folder / "trajectories.jsonl")]
    trained = [(t, batch) for t, batch in trajectories if t.reward is not None]
    assert len(trained) == 24
    for t, _ in trained:
        assert t.teacher is not None
        assert len(t.teacher.logprobs_N) == t.action_tokens > 0
        assert all(p <= 0.0 for p in t.teacher.logprobs_N)
    for number, row in enumerate(rows(opd_job.folder)):
        of_batch = [t for t, batch in trained if batch == number]
        assert float(row["reverse_kl_mean"]) == pytest.approx(reverse_kl(of_batch), rel=1e-9)
        assert row["groups_degenerate"] == "0"
        assert float(row["gradient_norm"]) > 0.0


def test_the_streamed_update_is_the_synchronous_one(opd_job):
    parity = opd_job.summary["parity"]
    assert (parity["checked"], parity["ok"]) == (2, True)


def test_the_summary_says_who_taught(opd_job):
    summary = opd_job.summary
    jsonschema.validate(summary, json.loads(SCHEMA_PATH.read_text()))
    assert (summary["objective"], summary["release"]) == ("opd", "submit")
    said, found = summary["distillation"], rows(opd_job.folder)
    assert (said["teacher"], said["top_k"], said["task_weight"]) == ("torch", 0, 0.0)
    assert said["reverse_kl"] == {
        "first": pytest.approx(float(found[0]["reverse_kl_mean"])),
        "last": pytest.approx(float(found[1]["reverse_kl_mean"])),
    }
    assert said["teacher_busy_s"] > 0.0
    assert 0.0 < said["teacher_idle"] < 1.0


def test_the_teacher_works_while_tool_calls_and_verifiers_run(opd_job):
    """Its intervals are on the timeline, and some lie inside a sandbox's commands."""
    trace = json.loads((opd_job.folder / "timeline.json").read_text())["traceEvents"]
    names = {
        e["tid"]: e["args"]["name"] for e in trace if e["ph"] == "M" and e["name"] == "thread_name"
    }
    spans = [(names[e["tid"]], e) for e in trace if e["ph"] == "X"]
    scored = [e for name, e in spans if name == "teacher/0"]
    commands = [e for name, e in spans if name.startswith("sandbox/") and e["name"] == "exec"]
    assert len(scored) >= 24
    during = [
        s
        for s in scored
        if any(c["ts"] < s["ts"] + s["dur"] and s["ts"] < c["ts"] + c["dur"] for c in commands)
    ]
    assert len(during) > len(scored) / 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("schedule=sync", "objective.top_k=8"),
        ("schedule=one_step_off", "objective.task_weight=0.5"),
        ("schedule=async", "objective.discount=0.5"),
        ("schedule=stream", "schedule.release=submit", "rollout.group_size=1"),
    ],
    ids=["sync", "one_step_off", "async", "groups_of_one"],
)
def test_every_schedule_distils(overrides: tuple[str, ...], run_job, tmp_path: Path):
    job = run_job(tmp_path, "objective=opd", *overrides, "evaluation.initial=false",
                  "evaluation.final=false")  # fmt: skip
    assert job.summary["updates"] == 2
    assert job.summary["trajectories_lost"] == 0
    assert all(float(row["gradient_norm"]) > 0.0 for row in rows(job.folder))


@pytest.mark.slow
def test_a_replay_with_recorded_scores_makes_the_same_update(opd_job, run_job, tmp_path: Path):
    """Synchronously, and with no teacher at hand. Live rollouts would meet other tokens: what
    tools print is never quite the same."""
    recorded = opd_job.folder / "trajectories.jsonl"
    job = run_job(
        tmp_path, "objective=opd", "schedule=sync", "budget.limit=1", f"replay={recorded}",
        "teacher=recorded", f"teacher.file={recorded}",
    )  # fmt: skip
    first, again = rows(opd_job.folder)[0], rows(job.folder)[0]
    assert float(again["reverse_kl_mean"]) == pytest.approx(float(first["reverse_kl_mean"]))
    assert float(again["gradient_norm"]) == pytest.approx(float(first["gradient_norm"]), rel=1e-4)
