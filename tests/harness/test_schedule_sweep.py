"""Every schedule out of one command line, two jobs at a time, on a fresh store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from harness.records import SCHEMA_PATH

SCHEDULES = "sync,sync_colocated,one_step_off,async,async_4,async_8,stream"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_budget_sweep_over_every_schedule_ends_in_comparable_summaries(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    store = f"sqlite:///{tmp_path}/mlflow.db"
    done = subprocess.run(
        [
            sys.executable, "-m", "harness.run", "-m", f"schedule={SCHEDULES}", "budget.limit=1,2",
            "seed=0", "experiment=smoke", "sandbox=bubblewrap", "evaluation.initial=false",
            "evaluation.tasks=2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2",
            f"hydra.sweep.dir={tmp_path}/sweep", f"tracking.uri={store}",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=1100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    closing = json.loads(done.stdout.splitlines()[-1])
    summaries = [json.loads(Path(job["summary"]).read_text()) for job in closing]
    schema = json.loads(SCHEMA_PATH.read_text())
    for summary in summaries:
        jsonschema.validate(summary, schema)
        assert summary["status"] == "finished"
        assert summary["updates"] == summary["budget"]["limit"] == summary["budget"]["spent"]
        assert summary["sandboxes"]["leaked"] == 0
        assert summary["staleness"]["violations"]["tokens"] == 0
    bounds = [(s["schedule"], s["placement"], s["budget"]["limit"],
               s["staleness"]["violations"]["bound"]) for s in summaries]  # fmt: skip
    assert sorted(bounds) == sorted(
        (name, placement, limit, bound)
        for name, placement, bound in [
            ("sync", "disaggregated", 0), ("sync", "colocated", 0),
            ("one_step_off", "disaggregated", 1), ("async", "disaggregated", 1),
            ("async", "disaggregated", 4),
            ("async", "disaggregated", 8), ("stream", "disaggregated", 0),
        ]
        for limit in (1, 2)
    )  # fmt: skip
    # Equal in every job but for the schedule and the limit: tasks, seeds, weights, devices.
    manifests = [
        json.loads((Path(j["summary"]).parent / "manifest.json").read_text()) for j in closing
    ]
    assert len({m["policy_sha256"] for m in manifests}) == 1
    assert len({m["devices"]["total"] for m in manifests}) == 1
    client = MlflowClient(store)
    (experiment,) = [e for e in client.search_experiments() if e.name == "thundersync"]
    runs = client.search_runs([experiment.experiment_id], max_results=50)
    children = [r for r in runs if "mlflow.parentRunId" in r.data.tags]
    (parent,) = [r for r in runs if r not in children]
    assert len(children) == 14
    assert {r.data.tags["mlflow.parentRunId"] for r in children} == {parent.info.run_id}
    assert {r.info.status for r in runs} == {"FINISHED"}
