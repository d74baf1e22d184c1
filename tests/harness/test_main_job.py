"""The main job end to end: what it leaves, and that both schedules start from the same place."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import jsonschema
import pytest

from harness.composition import recorded
from harness.interrupt import run_async
from harness.mlflow_tracking import numbers
from harness.records import SCHEMA_PATH
from harness.relearn import relearn
from harness.trajectory_lines import read
from thundersync.evidence import early_backwards


@pytest.fixture(params=["stream", "sync"])
def job(request):
    return request.getfixturevalue(f"{request.param}_job")


def test_the_summary_fits_the_schema_and_the_closing_line(job):
    summary = job.summary
    jsonschema.validate(summary, json.loads(SCHEMA_PATH.read_text()))
    assert summary["status"] == "finished"
    assert job.closing["summary"] == str(job.folder / "summary.json")
    assert job.closing["accuracy_final"] == summary["accuracy"]["final"]
    assert summary["updates"] == 2
    assert summary["sandboxes"]["leaked"] == 0
    assert summary["sandboxes"]["created"] == summary["sandboxes"]["removed"] > 24
    assert summary["staleness"] == {
        "mean": 0.0, "max": 0, "violations": {"bound": 0, "tokens": 0, "trajectories": 0},
    }  # fmt: skip
    assert summary["sandbox"] == "bubblewrap"
    assert job.stderr.splitlines()[0].startswith("sandbox: bubblewrap")


def test_updates_and_trajectories_are_recorded_whole(job):
    summary = job.summary
    with (job.folder / "updates.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == summary["updates"]
    assert all(float(r["tail_s"]) > 0 for r in rows)
    trajectories = [t for t, _ in read(job.folder / "trajectories.jsonl")]
    assert len(trajectories) == summary["trajectories"] == 24
    assert sum(t.action_tokens for t in trajectories) == summary["tokens_generated"]
    for trajectory in trajectories:
        assert trajectory.turns
        assert trajectory.reward in (0.0, 1.0)
        # Every generated token has a log-probability and a version, and belongs to one turn.
        spans = [(s.start, s.end) for s in trajectory.version_spans]
        assert spans == [(t.action_start, t.action_end) for t in trajectory.turns]
        assert sum(end - start for start, end in spans) == trajectory.action_tokens
        assert all(
            (p < 0) == bool(m) or p == 0
            for p, m in zip(trajectory.behaviour_logprobs_T, trajectory.action_mask_T, strict=True)
        )


def test_mlflow_ends_with_the_figures_of_the_summary(job):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(job.store)
    (experiment,) = [e for e in client.search_experiments() if e.name == "thundersync"]
    (run,) = client.search_runs([experiment.experiment_id])
    summary = job.summary
    assert run.info.status == "FINISHED"
    expected = numbers(summary)
    assert {"time/tail_s", "idle/devices", "resources/engine/blocked"} <= set(expected)
    assert {key: run.data.metrics[key] for key in expected} == pytest.approx(expected)
    assert len(client.get_metric_history(run.info.run_id, "reward/mean")) == summary["updates"]
    assert {a.path for a in client.list_artifacts(run.info.run_id)} >= {
        "summary.json", "updates.csv", "trajectories.jsonl", "timeline.json", "manifest.json",
    }  # fmt: skip


def test_the_curve_over_the_budget_is_recorded_everywhere(sync_job, stream_job):
    """One update of two is half the budget, and still the last one at nine tenths."""
    from mlflow.tracking import MlflowClient

    summary = sync_job.summary
    accuracy, time_s = summary["accuracy"], summary["time"]
    half, late = accuracy["curve"]
    assert [(p["mark"], p["spent"], p["version"], p["phase"]) for p in (half, late)] == [
        (0.5, 1, 1, "mark-0.5"), (0.9, 1, 1, "mark-0.5"),
    ]  # fmt: skip
    assert (late["solve_rate"], late["lost"]) == (half["solve_rate"], half["lost"])
    # Samples per task: one. Its pass@1 is the solve rate, and that is the lines' own.
    lines = list(read(sync_job.folder / "evaluation.jsonl"))
    for phase, rate in (
        ("initial", accuracy["initial"]), ("mark-0.5", half["solve_rate"]),
        ("final", accuracy["final"]),
    ):  # fmt: skip
        judged = [(t.task_id, t.seed, t.reward) for t, line in lines if line["phase"] == phase]
        assert len(judged) == accuracy["tasks"] == 8
        assert sum(reward == 1.0 for *_, reward in judged) / 8 == rate
        assert {(task, seed) for task, seed, _ in judged} == {
            (t.task_id, t.seed) for t, line in lines if line["phase"] == "initial"
        }
    assert accuracy["pass_at_k"]["final"] == {"1": accuracy["final"]}
    client = MlflowClient(sync_job.store)
    (run,) = client.search_runs([client.get_experiment_by_name("thundersync").experiment_id])
    history = client.get_metric_history(run.info.run_id, "accuracy/curve/solve_rate")
    assert {(m.step, m.value) for m in history} == {(1, half["solve_rate"])}
    assert run.data.metrics["accuracy/pass_at_k/final/1"] == accuracy["final"]
    final = client.get_metric_history(run.info.run_id, "accuracy/final")
    assert [m.step for m in final] == [2]
    # Outside the budget, and gone.
    assert 0 < time_s["snapshot_s"] < 1
    spent_s = 2 * time_s["per_update_s"]
    assert time_s["training_s"] == pytest.approx(spent_s, abs=0.2)
    names = [f.name for f in (sync_job.folder / "checkpoints").iterdir()]
    assert names == ["weights-000002.safetensors"]
    assert stream_job.summary["accuracy"]["curve"] == []


def test_every_token_that_the_engine_made_is_counted(job):
    """By the engine's own intervals: nothing was under way when an update budget ended."""
    assert job.summary["budget"]["discarded"] == {
        "trajectories": 0, "unfinished": 0, "tokens": 0, "tokens_not_counted": 0, "seconds": 0.0,
    }  # fmt: skip


def test_the_same_seed_gives_the_same_tasks_weights_and_first_batch(stream_job, sync_job):
    """Only the schedule differs: the first batch is sampled from the same weights with the same
    seeds, so its prompts and seeds are equal token for token."""
    recorded = []
    for job in (stream_job, sync_job):
        lines = sorted(read(job.folder / "trajectories.jsonl"), key=lambda x: x[0].trajectory_id)
        recorded.append(
            {
                t.trajectory_id: (t.task_id, t.seed, t.tokens_T[: t.turns[0].action_start])
                for t, _ in lines
            }
        )
    assert recorded[0] == recorded[1]
    manifests = [
        json.loads((j.folder / "manifest.json").read_text()) for j in (stream_job, sync_job)
    ]
    assert manifests[0]["policy_sha256"] == manifests[1]["policy_sha256"]
    assert manifests[0]["data"] == manifests[1]["data"]


def test_streaming_is_real(stream_job, sync_job):
    early = early_backwards(stream_job.folder / "timeline.json")
    assert early
    assert not any(backward.before_own_reward for backward in early)  # release=reward
    assert stream_job.summary["ledger"]["buffers_peak"] >= 1
    assert early_backwards(sync_job.folder / "timeline.json") == []
    assert sync_job.summary["ledger"] is None


def test_a_run_carries_its_own_parity_certificate(stream_job, sync_job):
    """In summary.json and MLflow, timed apart, outside the budget window and the idle figures."""
    from mlflow.tracking import MlflowClient

    summary, parity = stream_job.summary, stream_job.summary["parity"]
    assert sync_job.summary["parity"] is None
    assert 1 <= parity["checked"] <= 2
    assert parity["ok"] is True
    assert parity["held"] == parity["checked"]
    assert stream_job.closing["parity_ok"] is True
    assert "parity_ok" not in sync_job.closing
    assert 0 < parity["control_relative_error_max"] < 1e-5
    assert parity["gradient_relative_error_max"] <= 3 * parity["control_relative_error_max"]
    assert 0 < parity["parameter_gap"] <= 5 * parity["control_parameter_gap"]
    assert summary["time"]["parity_s"] > 0.2
    spent_s = 2 * summary["time"]["per_update_s"]
    assert summary["time"]["training_s"] == pytest.approx(spent_s, abs=0.2)
    busy_s = (1 - summary["idle"]["learner"]) * summary["time"]["training_s"]
    assert busy_s == pytest.approx(summary["time"]["learner_busy_s"], rel=1e-6)
    client = MlflowClient(stream_job.store)
    (run,) = client.search_runs([client.get_experiment_by_name("thundersync").experiment_id])
    history = client.get_metric_history(run.info.run_id, "parity/gradient_relative_error")
    assert max(m.value for m in history) == parity["gradient_relative_error_max"]


def test_a_run_is_relearned_bit_for_bit_from_its_records(stream_job, tmp_path: Path):
    """The log of verbs is the composition of chunks; a changed normaliser is found."""
    again = run_async(relearn(stream_job.folder, recorded(stream_job.folder)))
    assert again["bit_identical"], again
    assert again["updates"] == 2
    folder = shutil.copytree(stream_job.folder, tmp_path / "changed")
    lines = (folder / "learner.jsonl").read_text().splitlines()
    step = next(i for i, line in enumerate(lines) if '"step"' in line)
    verb = json.loads(lines[step])
    verb["normaliser"] *= 1.0001
    lines[step] = json.dumps(verb)
    (folder / "learner.jsonl").write_text("\n".join(lines) + "\n")
    changed = run_async(relearn(folder, recorded(folder)))
    assert changed["first_different_update"] == 1
    assert not changed["bit_identical"]


@pytest.mark.slow
def test_submit_does_not_wait_for_the_own_reward(run_job, tmp_path: Path):
    job = run_job(
        tmp_path, "schedule=stream", "schedule.release=submit", "evaluation.initial=false",
        "evaluation.final=false",
    )  # fmt: skip
    early = early_backwards(job.folder / "timeline.json")
    assert any(backward.before_own_reward for backward in early)
    assert job.summary["release"] == "submit"
    assert job.summary["updates"] == 2


DELAYED = '''
from harness.protocols import GroupClosed
from thundersync.stream import Stream

class Delayed(Stream):
    """Claims release=reward, waits for the whole batch, and captures only then."""

    async def _listen(self, batch, hand):
        if not hasattr(batch, "held"):
            batch.held = []
            while (event := await batch.next()) is not None:
                if isinstance(event, GroupClosed):
                    batch.held.append(event)
                else:
                    hand.take(event)
        if not hand.released:
            held, batch.held = batch.held, []
            for event in held:
                hand.take(event)
            return bool(held)
        return True
'''


@pytest.mark.slow
def test_a_stream_that_secretly_waits_for_the_batch_is_found_out(run_job, tmp_path: Path):
    (tmp_path / "delayed.py").write_text(DELAYED)
    job = run_job(
        tmp_path, "schedule=stream", "schedule.target=delayed:Delayed", "evaluation.initial=false",
        "evaluation.final=false", "budget.limit=1", path=tmp_path,
    )  # fmt: skip
    assert job.summary["release"] == "reward"
    assert job.summary["ledger"]["buffers_peak"] >= 1  # it did capture: only when is the lie
    assert early_backwards(job.folder / "timeline.json") == []


def test_two_runs_can_be_drawn_side_by_side(stream_job, sync_job, tmp_path: Path):
    from results.gantt import load_update, write

    updates = [load_update(job.folder, 2) for job in (sync_job, stream_job)]
    with (sync_job.folder / "updates.csv").open() as file:
        row = list(csv.DictReader(file))[1]
    assert updates[0]["length_s"] == pytest.approx(float(row["per_update_s"]))
    assert {"generate", "exec", "start", "accumulate"} >= {n for _, n, *_ in updates[0]["bars"]} - {
        "collect", "verify", "stop", "step", "publish",
    }  # fmt: skip
    write(updates, tmp_path / "update.png")
    assert (tmp_path / "update.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="update=3 is not in"):
        load_update(sync_job.folder, 3)


@pytest.mark.slow
def test_a_run_on_an_evaluation_set_says_so_everywhere(tmp_path, run_job):
    (tmp_path / "benchmark.py").write_text(
        "from dataclasses import replace\n"
        "from environments.swebench.mini.dataset import MiniSource\n"
        "class Benchmark(MiniSource):\n"
        "    def instances(self, split):\n"
        "        return [replace(i, split='test') for i in super().instances(split)]\n"
    )
    job = run_job(
        tmp_path, "env.dataset='benchmark:Benchmark'", "env.train_on_evaluation=true",
        "budget.limit=1", "rollout.groups_per_batch=1", "evaluation.tasks=1", path=tmp_path,
    )  # fmt: skip
    assert job.summary["trains_on_evaluation"] is True
    manifest = json.loads((job.folder / "manifest.json").read_text())
    assert manifest["trains_on_evaluation"] is True
    assert "env.train_on_evaluation=true: training on benchmark:Benchmark" in job.stderr
