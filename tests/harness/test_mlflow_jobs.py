"""A 2 x 2 multirun asked for through MLflow's own API."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FIGURES = {
    "time/per_update_s": ("time", "per_update_s"),
    "idle/learner": ("idle", "learner"),
    "idle/engine": ("idle", "engine"),
    "accuracy/final": ("accuracy", "final"),
}


@pytest.mark.slow
def test_one_parent_four_children_and_the_figures_of_their_summaries(tmp_path: Path):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    done = subprocess.run(
        [
            sys.executable, "-m", "harness.run", "-m", "experiment=smoke", "schedule=sync,stream",
            "seed=0,1", "sandbox=bubblewrap", "budget.limit=1", "rollout.groups_per_batch=2",
            "evaluation.tasks=2", "evaluation.initial=false", "tracking.traces=1",
            f"tracking.uri={uri}", f"hydra.sweep.dir={tmp_path / 'sweep'}",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=290, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("thundersync")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert {run.info.status for run in runs} == {"FINISHED"}
    (parent,) = [run for run in runs if run.data.tags.get("multirun") == "true"]
    children = [
        run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id
    ]
    assert len(children) == 4 and len(runs) == 5
    summaries = {path.parent.name: json.loads(path.read_text())
                 for path in (tmp_path / "sweep").glob("*/summary.json")}  # fmt: skip
    assert {run.info.run_name for run in children} == set(summaries)
    for run in children:
        summary = summaries[str(run.info.run_name)]
        assert run.data.tags["schedule"] == summary["schedule"]
        for metric, (group, key) in FIGURES.items():
            assert run.data.metrics[metric] == summary[group][key]
        contexts = {i.tags[0].value for i in run.inputs.dataset_inputs}
        assert contexts == {"training", "evaluation"}
    traces = client.search_traces(locations=[experiment.experiment_id])
    assert {t.info.request_metadata["mlflow.sourceRun"] for t in traces} == {
        run.info.run_id for run in children
    }
