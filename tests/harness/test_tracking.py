"""MLflow on a real SQLite store: figures, children, and runs whose process was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from harness.composition import compose
from harness.config import Config
from harness.protocols import UsageError
from harness.records import Records, blank_summary
from harness.tracking import NoTracker, open_parent, open_tracker

_LEAVE_RUNNING = """
import os, signal, sys
from harness.composition import compose
from harness.tracking import open_tracker
tracker = open_tracker(compose([f"tracking.uri={sys.argv[1]}"]), "victim")
tracker.ready()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


def _config(uri: str) -> Config:
    return compose([f"tracking.uri={uri}", "tracking.experiment=tests"])


def _runs(uri: str) -> dict[str, object]:
    client = MlflowClient(uri)
    found = client.search_runs([e.experiment_id for e in client.search_experiments()])
    return {run.info.run_name: run for run in found}


def test_the_last_figures_are_the_summary_s(uri: str, tmp_path: Path) -> None:
    config = _config(uri)
    tracker = open_tracker(config, "one")
    for step in range(1, 4):
        tracker.update(step, {"idle/learner": 0.9, "time/per_update_s": step, "note": "text"})
    summary = blank_summary(config) | {"status": "finished", "updates": 3}
    summary["idle"]["learner"] = 0.25  # below what the updates said: the last value must win
    summary["release_chosen"] = "submit"
    Records(tmp_path).summary(summary)
    tracker.close("finished", summary, tmp_path)
    run = _runs(uri)["one"]
    assert run.info.status == "FINISHED"
    assert run.data.metrics["idle/learner"] == 0.25
    assert run.data.metrics["budget/limit"] == 20
    assert run.data.params["rollout.group_size"] == "8"
    assert run.data.tags["schedule"] == "stream"
    assert run.data.tags["status"] == "finished"
    assert run.data.tags["release_chosen"] == "submit"
    client = MlflowClient(uri)
    history = client.get_metric_history(run.info.run_id, "time/per_update_s")
    assert [(m.step, m.value) for m in history] == [(1, 1), (2, 2), (3, 3)]
    assert [a.path for a in client.list_artifacts(run.info.run_id)] == ["summary.json"]


@pytest.mark.parametrize(("status", "expected"), [("interrupted", "KILLED"), ("failed", "FAILED")])
def test_an_unhappy_end_is_told(status: str, expected: str, uri: str, tmp_path: Path) -> None:
    tracker = open_tracker(_config(uri), status)
    tracker.close(status, blank_summary(_config(uri)) | {"status": status}, tmp_path)
    assert _runs(uri)[status].info.status == expected


def test_a_run_left_by_sigkill_is_killed_at_the_next_start(uri: str, tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", _LEAVE_RUNNING, uri], timeout=60)
    assert ended.returncode == -9
    assert _runs(uri)["victim"].info.status == "RUNNING"
    alive = open_tracker(_config(uri), "alive")
    alive.ready()
    another = open_tracker(_config(uri), "another")
    another.ready()
    assert _runs(uri)["victim"].info.status == "KILLED"
    assert _runs(uri)["alive"].info.status == "RUNNING"  # its process, this one, lives
    for tracker in (alive, another):
        tracker.close("finished", {}, tmp_path)


def test_jobs_are_children_of_their_multirun(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "somebody-elses")
    parent = open_parent(_config(uri), "sweep")
    assert "MLFLOW_RUN_ID" not in os.environ
    child = open_tracker(_config(uri), "child")
    child.close("finished", {}, tmp_path)
    parent.close("finished")
    runs = _runs(uri)
    assert runs["child"].data.tags["mlflow.parentRunId"] == runs["sweep"].info.run_id
    assert runs["sweep"].info.status == "FINISHED"
    orphan = open_tracker(_config(uri), "orphan")
    orphan.close("finished", {}, tmp_path)
    assert "mlflow.parentRunId" not in _runs(uri)["orphan"].data.tags


def test_a_store_that_cannot_be_opened_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tracker = open_tracker(_config(f"sqlite:///{tmp_path}/file/mlflow.db"), "nowhere")
    with pytest.raises(UsageError, match=r"tracking\.uri=.*tracking=none"):
        tracker.ready()


def test_none_logs_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tracker = open_tracker(compose(["tracking=none"]), "quiet")
    tracker.update(1, {"a/b": 1})
    tracker.close("finished", {}, tmp_path)
    assert isinstance(tracker, NoTracker)
    assert list(tmp_path.iterdir()) == []


def _trajectory_line(**more: object) -> dict[str, object]:
    turn = {
        "action_start": 5, "action_end": 9, "started_s": 1.0, "generated_s": 2.0,
        "finished_s": 2.5, "exec_s": 0.5, "exit_code": 0, "timed_out": False,
    }  # fmt: skip
    return {
        "trajectory_id": "0-3", "task_id": "mini__a", "group": 0, "index": 3, "attempt": 0,
        "end": "submit", "tokens": 9, "started_s": 0.5, "finished_s": 2.5, "reward_s": 4.0,
        "verify_s": 1.0, "reward": 1.0, "infrastructure_error": None, "turns": [turn],
    } | more  # fmt: skip


def test_data_sets_and_turns_are_told_when_asked_for(uri: str, tmp_path: Path) -> None:
    """What it was trained on and evaluated on, with their hashes; a trace a trajectory."""
    config = compose([f"tracking.uri={uri}", "tracking.experiment=told", "tracking.traces=2"])
    data = {"mini/train": "a" * 64, "mini/eval": "b" * 64, "mini/fit": "c" * 64}
    (tmp_path / "manifest.json").write_text(json.dumps({"data": data}))
    lost = _trajectory_line(trajectory_id="0-4", infrastructure_error="exec", reward=None,
                            reward_s=None, verify_s=0.0, turns=[])  # fmt: skip
    lines = [_trajectory_line(), lost, _trajectory_line(trajectory_id="0-5")]
    (tmp_path / "trajectories.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    tracker = open_tracker(config, "told")
    tracker.close("finished", {}, tmp_path)
    run, client = _runs(uri)["told"], MlflowClient(uri)
    assert run.info.status == "FINISHED"
    found = {(i.tags[0].value, i.dataset.name, i.dataset.digest) for i in run.inputs.dataset_inputs}
    assert found == {
        ("training", "swebench/mini/train", "a" * 36),
        ("evaluation", "swebench/mini/eval", "b" * 36),
    }
    traces = client.search_traces(locations=[run.info.experiment_id])
    spans = {t.data.spans[0].name: t.data.spans for t in traces}
    assert set(spans) == {"trajectory 0-3", "trajectory 0-4"}
    one = spans["trajectory 0-3"]
    assert [s.name for s in one] == ["trajectory 0-3", "turn 1", "generate", "tool call", "verify"]
    lengths = [(s.end_time_ns - s.start_time_ns) / 1e9 for s in one]
    assert lengths == pytest.approx([3.5, 1.5, 1.0, 0.5, 1.0], abs=1e-6)
    assert {t.info.request_metadata["mlflow.sourceRun"] for t in traces} == {run.info.run_id}


def test_the_machine_s_load_is_sampled_unless_it_is_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    (tmp_path / "run").mkdir()
    for wanted in ("true", "false"):
        tracker = open_tracker(
            compose([f"tracking.uri={uri}", f"tracking.system_metrics={wanted}"]), wanted
        )
        tracker.ready()
        time.sleep(2.0)
        tracker.close("finished", {}, tmp_path / "run")
    runs = _runs(uri)
    assert 0 <= runs["true"].data.metrics["system/cpu_utilization_percentage"] <= 100
    assert not [m for m in runs["false"].data.metrics if m.startswith("system/")]


@pytest.mark.slow
def test_processes_that_start_side_by_side_share_a_fresh_store(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from harness.composition import compose;"
        "from harness.tracking import open_tracker; _, uri, name, folder = sys.argv;"
        "t = open_tracker(compose([f'tracking.uri={uri}']), name); t.ready();"
        "t.close('finished', {}, Path(folder))"
    )
    uri, folder = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "run"
    folder.mkdir()
    processes = [
        subprocess.Popen([sys.executable, "-c", script, uri, f"run-{n}", str(folder)])
        for n in range(4)
    ]
    assert [process.wait(timeout=200) for process in processes] == [0] * 4
    runs = _runs(uri)
    assert sorted(runs) == [f"run-{n}" for n in range(4)]
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
