"""The presets for GPU nodes: they compose and are valid, are refused in one line where there are no
GPUs, and run for real when they are scaled down."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from harness.composition import compose
from harness.fit import fit
from harness.policy.load import resolve
from harness.policy.size import of_config
from harness.records import SCHEMA_PATH
from harness.validation import validate

# Qwen3-14B's config.json (arXiv 2505.09388, table 1).
POLICY = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 5120, "intermediate_size": 17408,
    "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip
PRESETS = ("paper_swebench_8xh100", "paper_terminal_bench")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """What stands for the preset's weights: the bundled policy's, called one of long contexts."""
    folder = shutil.copytree(resolve("tiny"), tmp_path / "large")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 262144}))
    return folder


@pytest.mark.parametrize("preset", PRESETS)
def test_all_that_needs_no_gpu_is_valid(preset: str, large: Path) -> None:
    """But for vLLM, which may not be installed here, and the data, which lie elsewhere."""
    config = compose(
        [
            f"experiment={preset}", f"policy.path={large}", "env.dataset=mini", "engine=torch",
            "engine.device=cpu", "engine.dtype=float32",
        ]
    )  # fmt: skip
    validate(config, gpu_count=lambda: 8)
    assert config.engine.name == "torch" and config.learner.parallel == "fsdp"


@pytest.mark.parametrize("preset", PRESETS)
def test_it_fits_into_what_it_was_made_for_by_the_harness_own_estimate(preset: str) -> None:
    import torch
    import transformers

    with torch.device("meta"):
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**POLICY))
    size = of_config(POLICY, {n: tuple(p.shape) for n, p in model.named_parameters()})
    assert size.parameters == 14_768_307_200
    config = compose([f"experiment={preset}", "hardware=8xh100"])
    for key in ("engine_devices", "learner_devices"):  # not the hardware's own split
        preset_alone = compose([f"experiment={preset}"]).schedule
        setattr(config.schedule, key, getattr(preset_alone, key))
    found = fit(config, size)
    assert found.fits and found.max_open_groups == config.rollout.groups_per_batch
    assert found.room.free_bytes == 80e9 and found.room.host_bytes == 2e12
    longer = config.rollout.max_context_tokens * 2
    config.rollout.max_context_tokens = longer
    assert not fit(config, size).fits


@pytest.mark.parametrize("preset", PRESETS)
def test_without_gpus_it_is_one_line_with_the_way_out(preset: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "harness.run", f"experiment={preset}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, list(tmp_path.iterdir())) == (2, "", [])
    (line,) = ended.stderr.splitlines()
    assert "needs 8 GPUs (4 for the learner and 4 for the engine), this machine shows 0" in line
    assert "rehearsal=cpu (docs/gpu_presets.md)" in line


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_rehearsal_makes_one_update_of_two_tasks(preset: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [
            sys.executable, "-m", "harness.run", f"experiment={preset}", "rehearsal=cpu",
            f"hydra.run.dir={tmp_path}/run", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    jsonschema.validate(summary, json.loads(SCHEMA_PATH.read_text()))
    assert (summary["status"], summary["updates"], summary["trajectories"]) == ("finished", 1, 8)
    assert summary["accuracy"]["tasks"] == 2
    (row,) = csv.DictReader((tmp_path / "run" / "updates.csv").open())
    # The bundled policy seldom solves a terminal task: groups alike have no gradient to compare.
    without_signal = row["groups_degenerate"] == "2"
    assert summary["parity"]["ok"] is (None if without_signal else True)
    assert without_signal == (float(row["gradient_norm"]) == 0.0)
    assert (tmp_path / "run" / "checkpoints" / "update-000001").is_dir()
