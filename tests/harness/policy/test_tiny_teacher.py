"""The bundled teacher: what it is, what its record says, and the command that made it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from harness.policy.load import load_for_training, resolve
from harness.policy.lora import plain_weights
from harness.policy.tiny_teacher_training import Options, export, parse
from harness.protocols import UsageError
from harness.teachers.select import Tokens

FOLDER = resolve("tiny_teacher")


def test_the_record_is_of_these_weights_and_says_that_they_teach_something():
    made = json.loads((FOLDER / "TEACHER.json").read_text())
    weights = (FOLDER / "model.safetensors").read_bytes()
    assert made["weights_sha256"] == hashlib.sha256(weights).hexdigest()
    assert len(weights) == made["weights_bytes"] < 4e6
    assert made["settings"]["env.split"] == "train"
    for split in ("validation", "eval"):
        assert made["teacher"][split]["solve_rate"] > 2 * made["policy"][split]["solve_rate"]


def test_it_reads_tokens_as_the_policy_does_and_is_another_policy():
    assert Tokens.of(FOLDER) == Tokens.of(resolve("tiny"))
    teacher, policy = [
        load_for_training(resolve(n), torch.float32) for n in ("tiny_teacher", "tiny")
    ]
    ids = torch.arange(40)[None]
    with torch.no_grad():
        difference = teacher(input_ids=ids).logits - policy(input_ids=ids).logits
    assert float(difference.abs().max()) > 0.5


def test_published_weights_become_a_folder_of_sharper_logits(tmp_path: Path):
    policy = load_for_training(resolve("tiny"), torch.float32)
    published = tmp_path / "checkpoints" / "weights-000003.safetensors"
    published.parent.mkdir()
    save_file(plain_weights(policy), published)
    export(published, tmp_path / "out", 0.5)
    sharper = load_for_training(tmp_path / "out", torch.float32)
    ids = torch.arange(30)[None]
    with torch.no_grad():
        expected = 2.0 * policy(input_ids=ids).logits
        found = sharper(input_ids=ids).logits
    assert torch.allclose(found, expected, atol=0.05 * float(expected.abs().max()))
    assert Tokens.of(tmp_path / "out") == Tokens.of(resolve("tiny"))


def test_weights_of_something_else_are_refused(tmp_path: Path):
    save_file({"other": torch.zeros(1)}, tmp_path / "weights-000001.safetensors")
    with pytest.raises(UsageError, match="its weights are not those of policy=tiny"):
        export(tmp_path / "weights-000001.safetensors", tmp_path / "out", 1.0)


def test_the_command_line():
    made = parse(["out=x", "updates=3", "temperature=0.7", "schedule=sync", "seed=4"])
    overrides = ["budget.limit=3", "schedule=sync", "seed=4"]
    assert made == Options(Path("x"), None, 0.7, overrides)
    assert parse(["out=x"]).overrides == ["budget.limit=40"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give a folder, out=DIR"),
        (["out=x", "temperature=0"], "temperature=0: take a number above 0 and at most 1"),
        (["out=x", "temperature=cold"], "temperature=cold: take a number"),
        (["out=x", "run=nowhere"], "run=nowhere: no checkpoints/"),
        (["out=x", "run=nowhere", "updates=2"], "leave run= out to train another"),
    ],
)
def test_a_mistake_is_named(arguments: list[str], words: str):
    with pytest.raises(UsageError) as caught:
        parse(arguments)
    assert words in str(caught.value)
