"""Virtual time does not see the cluster: what a run leaves is the same to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
FILES = ("updates.csv", "trajectories.jsonl", "learner.jsonl", "timeline.json")


def left(job: Any) -> dict[str, Any]:
    """All that a run leaves, but for the real seconds that it took and where that was."""
    summary = job.summary
    del summary["time"]["simulated_in_s"]
    kept = {name: (job.folder / name).read_bytes() for name in FILES}
    manifest = json.loads((job.folder / "manifest.json").read_text())
    return kept | {"summary": summary, "clusters": (summary.pop("cluster"), manifest["cluster"])}


def test_real_commands_on_hosts_of_sandboxes(tmp_path: Path, jobs) -> None:
    """Real learning: tokens, commands, verdicts and gradients; the commands run on Ray."""
    settings = (
        "env=swebench_virtual", "hardware=8xb200", "workload=swebench_verified",
        "schedule=stream", "budget.limit=2", "rollout.group_size=2", "rollout.groups_per_batch=2",
        "evaluation.initial=false", "evaluation.final=false", "sandbox.max_parallel=8",
        "tracking=none",
    )  # fmt: skip
    on_ray = ("cluster=ray", "cluster.start_timeout_s=300")
    local = left(jobs.Job.finish(tmp_path / "local", *settings, "cluster=local"))
    ray = left(jobs.Job.finish(tmp_path / "ray", *settings, *on_ray))
    assert local.pop("clusters") == ("local", {"name": "local"})
    name, facts = ray.pop("clusters")
    assert name == facts["name"] == "ray"
    assert facts["groups"]["sandboxes"]["bundles"] == [{"sandbox": 8.0}]
    why = local["summary"].pop("sandbox_why"), ray["summary"].pop("sandbox_why")
    assert why[1].startswith(why[0]) and "on 1 hosts of [8]" in why[1]
    account = local["summary"].pop("sandboxes"), ray["summary"].pop("sandboxes")
    assert account[0]["created"] == account[1]["created"] > 0
    assert ray == local
