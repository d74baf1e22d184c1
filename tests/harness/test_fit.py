"""What a run takes, before it starts: the formula against what autograd keeps, and its answers."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import fit
from harness.composition import compose
from harness.config import ObjectiveConfig
from harness.fit import Room
from harness.footprint import Pass, footprint, kept_bytes, logits_bytes
from harness.learner.client import ScoredTokens
from harness.learner.passes import recompute
from harness.learner.scoring import Scorer
from harness.policy.load import load_for_training, resolve
from harness.policy.size import of_config, policy_size
from harness.protocols import UsageError
from thundersync.segments_memory import Saved

GB = 10**9
SIZE: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4,
    "num_attention_heads": 4, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SHARED = SIZE | {"num_key_value_heads": 2, "head_dim": 16}


@pytest.mark.parametrize(
    ("kind", "dtype", "most"),
    [
        ("llama", "float32", 1.06),
        ("qwen3", "float32", 1.06),
        ("gpt_neox", "float32", 1.10),
        ("llama", "bfloat16", 1.12),
    ],
)
def test_what_a_pass_keeps_is_the_formulas_and_never_more(kind: str, dtype: str, most: float):
    import transformers

    config = transformers.AutoConfig.for_model(kind, **(SIZE if kind == "gpt_neox" else SHARED))
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    size = of_config(config.to_dict(), shapes)
    assert size.parameters == sum(p.numel() for p in model.parameters())
    tokens = 128
    row = ScoredTokens("a", 0, 1.0, [n % 97 for n in range(tokens + 1)], [0] * tokens + [1])
    for again in (False, True):
        recompute(model, again)
        saved = Saved(list(model.parameters()))
        with saved:
            score = Scorer(model, 1.0, ObjectiveConfig(), None, dtype)([row], [1.0])
        assert score is not None
        found, expected = saved.live_bytes(), kept_bytes(size, Pass(tokens, 1, dtype, again))
        if dtype == "bfloat16" and not again:  # the weights' rounded copies, counted apart
            expected += 2 * size.parameters
        if again:  # the formula has the layer besides that is being run again, and its gradients
            one = 2 * kept_bytes(replace(size, layers=1), Pass(tokens, 1, dtype))
            assert found <= expected <= found * 1.1 + one
        else:
            assert found <= expected <= found * most


def test_sizes_are_read_from_headers_alone() -> None:
    tiny = policy_size(resolve("tiny"))
    model = load_for_training(resolve("tiny"), torch.float32)
    assert tiny.parameters == sum(p.numel() for p in model.parameters()) == 984_448
    assert (tiny.layers, tiny.hidden, tiny.heads, tiny.head_dim) == (4, 128, 4, 32)
    assert tiny.adapters(8, ["q_proj", "v_proj"]) == 4 * 2 * 8 * (128 + 128)


def test_a_gguf_files_size_is_the_dequantised_ones(tmp_path: Path) -> None:
    from tests.harness.policy.test_load import save_gguf

    save_gguf(tmp_path / "small.gguf")
    size = policy_size(tmp_path / "small.gguf")
    model = load_for_training(tmp_path / "small.gguf", torch.float32)
    assert size.parameters == sum(p.numel() for p in model.parameters())
    assert (size.layers, size.hidden, size.heads, size.inner) == (2, 64, 2, 96)


def at(free: float, **there: Any) -> Room:
    return Room("a test", int(free), int(free), **({"shared": True} | there))


def test_the_largest_number_of_open_groups_fits_and_one_more_does_not() -> None:
    config = compose(["schedule=stream", "schedule.release=submit", "rollout.group_size=8"])
    size = policy_size(resolve("tiny"))
    whole = fit.fit(config, size, at(100 * GB))
    assert whole.fits and whole.max_open_groups == 8 == config.rollout.groups_per_batch
    assert whole.footprint.ledger == 8 * 8 * 984_448 * 4
    for count in (7, 3, 1):
        needed = whole.footprint.with_open_groups(count).host_bytes()
        assert fit.fit(config, size, at(needed)).max_open_groups == count
        short = fit.fit(config, size, at(needed - 1))
        assert short.max_open_groups == count - 1 and not short.fits
    assert fit.fit(compose(["schedule=sync"]), size, at(GB)).max_open_groups is None


@pytest.mark.parametrize("content", [b"no weights", b"\x04" + b"\0" * 7 + b"[1]}", b""])
def test_a_file_that_is_no_safetensors_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((resolve("tiny") / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match=r"^policy=.*model\.safetensors: no \.safetensors file"):
        policy_size(tmp_path)


def test_every_option_takes_what_it_says() -> None:
    size = policy_size(resolve("tiny"))
    weights = 984_448 * 4

    def learner(*settings: str) -> dict[str, int]:
        return footprint(compose(["schedule=stream", *settings]), size).learner

    plain = learner()
    assert plain["weights"] == weights and plain["optimizer"] == 2 * weights
    assert plain["total and gradient"] == 2 * weights and plain["rounded weights"] == 0
    assert plain["activations"] == kept_bytes(size, Pass(2048, 0))
    assert plain["logits"] == logits_bytes(size, Pass(2048, 1024))
    sliced = learner("learner.logits_tokens=64")
    assert sliced["logits"] == logits_bytes(size, Pass(2048, 64)) == plain["logits"] // 16
    again = learner("learner.gradient_checkpointing=true")["activations"]
    assert 3 * again < 2 * plain["activations"]  # of four layers
    half = learner("learner.dtype=bfloat16")
    assert half["weights"] == weights and half["rounded weights"] == weights // 2
    assert half["activations"] < plain["activations"]
    once = learner("learner.dtype=bfloat16", "learner.gradient_checkpointing=true")
    outside, layer = size.in_layers
    assert outside + 4 * layer == size.parameters
    assert once["rounded weights"] == 2 * (layer + size.vocabulary * size.hidden)
    assert plain["gathered weights"] == 0
    sharded = learner("learner.ranks=2", "schedule.learner_devices=2", "learner.parallel=fsdp")
    assert sharded["weights"] == weights // 2
    assert sharded["gathered weights"] == 4 * (outside + 4 * layer + size.parameters)
    double = learner("learner.dtype=float64", "ledger.dtype=float64")
    assert double["weights"] == 2 * weights
    assert learner("objective.kl.coefficient=0.1")["reference"] == weights
    adapted = learner("policy.lora.rank=8")
    assert adapted["optimizer"] == 2 * 4 * 81_920 and adapted["weights"] == weights + 4 * 81_920


def test_a_device_of_a_preset_is_judged_by_its_own_memory() -> None:
    config = compose(["schedule=stream", "schedule.release=submit", "hardware=8xh100"])
    found = fit.fit(config, policy_size(resolve("tiny")))
    assert found.room.free_bytes == 80 * GB or found.room.free_bytes > 70 * GB
    assert found.footprint.processes == 4 and found.fits


def test_what_cannot_fit_is_refused_in_one_line_whose_way_out_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = ["schedule=stream", "schedule.release=submit"]
    config, size = compose(settings), policy_size(resolve("tiny"))
    needed = footprint(config, size).with_open_groups(2).host_bytes()
    monkeypatch.setattr(fit, "available_bytes", lambda: needed)
    with pytest.raises(UsageError) as caught:
        fit.check(config)
    line = str(caught.value)
    assert "\n" not in line and line.startswith("ledger.max_open_groups=null, ledger.form=auto")
    assert "take ledger.max_open_groups=2" in line and "schedule.release=group" in line
    fit.check(compose([*settings, "ledger.max_open_groups=2"]))
    fit.check(compose([*settings, "schedule.release=group"]))
    with pytest.raises(UsageError):
        fit.check(compose([*settings, "ledger.max_open_groups=3"]))
    monkeypatch.setattr(fit, "available_bytes", lambda: 10**8)
    with pytest.raises(UsageError, match="a smaller policy or more memory"):
        fit.check(config)
    fit.check(compose([*settings, "agent=nop"]))  # nothing is loaded


def test_the_doctor_answers_for_settings(tmp_path: Path) -> None:
    def doctor(*settings: str) -> tuple[int, dict[str, Any]]:
        ended = subprocess.run(
            [sys.executable, "-m", "harness.doctor", *settings],
            cwd=tmp_path, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return ended.returncode, json.loads(ended.stdout or "{}") | {"error": ended.stderr}

    code, found = doctor("schedule.release=submit", "rollout.groups_per_batch=1000000")
    assert code == 1 and not found["ok"] and not found["fits"]
    assert 0 < found["largest_max_open_groups"] < 1_000_000
    assert found["parameters"] == 984_448 and found["learner_bytes"]["weights"] == 4 * 984_448
    code, found = doctor("policy=hf", "policy.path=no-owner/no-model")
    assert code == 2 and "policy=no-owner/no-model" in found["error"]
