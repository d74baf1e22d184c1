"""Adapters: what is trained, what the ledger holds, and what the engine gets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import log_softmax

from harness.composition import compose
from harness.config import Config
from harness.learner.client import ScoredTokens
from harness.learner.torch_learner import TorchLearner
from harness.parts import learner_options
from harness.policy.decoder import Chunk, Decoder
from harness.policy.load import load_for_training, resolve
from harness.policy.lora import Adapters, inject, plain_weights
from harness.protocols import FoldSpec, UsageError
from harness.validation import validate

TINY = resolve("tiny")
ADAPTERS = Adapters(rank=4, alpha=16.0, targets=("q_proj", "v_proj", "down_proj"), seed=3)
# q: 128 -> 128, v: 128 -> 128, down: 384 -> 128, each 4 x (inputs + outputs), in 4 layers.
ADAPTER_PARAMETERS = 4 * 4 * (256 + 256 + 512)
TOKENS = [5, 90, 17, 300, 41, 7, 812, 99]


def make_learner(folder: Path) -> TorchLearner:
    config = Config()
    lora = config.policy.lora
    lora.rank, lora.alpha, lora.targets = ADAPTERS.rank, ADAPTERS.alpha, list(ADAPTERS.targets)
    config.schedule.learning_rate = 1e-2
    return TorchLearner(**learner_options(config, TINY, folder))


def row(name: str, group: int, reward: float) -> ScoredTokens:
    return ScoredTokens(name, group, reward, TOKENS, [0, 0, 0, 1, 1, 1, 1, 1])


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([TOKENS])).logits[0]


def test_adapters_start_as_identity_and_they_alone_are_trainable() -> None:
    plain, adapted = (load_for_training(TINY, torch.float64, a) for a in (None, ADAPTERS))
    assert torch.equal(logits(adapted), logits(plain))
    trainable = {n: p for n, p in adapted.named_parameters() if p.requires_grad}
    assert all(".lora_A." in n or ".lora_B." in n for n in trainable)
    assert sum(p.numel() for p in trainable.values()) == ADAPTER_PARAMETERS
    assert {p.dtype for p in adapted.parameters()} == {torch.float64}


def test_every_rank_draws_the_same_adapters_and_disturbs_no_other_draw() -> None:
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    first = load_for_training(TINY, torch.float32, ADAPTERS)
    assert torch.equal(torch.rand(4), expected)
    second = load_for_training(TINY, torch.float32, ADAPTERS)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    other = Adapters(ADAPTERS.rank, ADAPTERS.alpha, ADAPTERS.targets, seed=4)
    third = dict(load_for_training(TINY, torch.float32, other).named_parameters())
    assert any(not torch.equal(p, third[n]) for n, p in first.named_parameters() if ".lora_A" in n)


def test_ledger_total_and_optimizer_hold_the_adapters_only(tmp_path: Path) -> None:
    learner = make_learner(tmp_path)
    rows = [row("a", 0, 1.0), row("b", 0, 0.0), row("c", 1, 1.0), row("d", 1, 1.0)]
    learner.capture(rows)
    before = {n: p.detach().clone() for n, p in learner.model.named_parameters()}
    learner.fold(FoldSpec(0, {"a": (1.0, 1.0), "b": (0.0, -1.0)}))
    learner.drop(1)
    assert sum(t.numel() for t in learner.update_direction(1.0)) == ADAPTER_PARAMETERS
    stats = learner.step(5.0)
    assert stats.ledger_buffers_peak == 3  # two rewards of group 0, one of group 1
    assert stats.ledger_bytes_peak == 3 * ADAPTER_PARAMETERS * 4
    held = [t for s in learner.optimizer.state.values() for n, t in s.items() if n != "step"]
    assert sum(t.numel() for t in held) == 2 * ADAPTER_PARAMETERS
    moved = {n for n, p in learner.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == set()  # the same tokens with opposite advantages: no direction


def test_the_engine_serves_merged_weights_and_training_goes_on_undisturbed(tmp_path: Path) -> None:
    learner = make_learner(tmp_path)
    plain = load_for_training(TINY, torch.float32)
    names = {n: p.shape for n, p in plain.named_parameters()}
    for _ in range(3):  # after the first step B is not 0 any more, and A moves too
        learner.accumulate([row("a", 0, 1.0)], [1.0])
        learner.step(5.0)
    kept = {n: p.detach().clone() for n, p in learner.model.named_parameters()}
    path, _ = learner.publish()
    for name, parameter in learner.model.named_parameters():
        assert torch.equal(parameter, kept[name])
    assert {n: w.shape for n, w in plain_weights(learner.model).items()} == names
    assert torch.equal(kept["model.norm.weight"], plain.model.norm.weight)
    base = "model.layers.0.mlp.down_proj"
    assert torch.equal(kept[f"{base}.base_layer.weight"], plain.get_submodule(base).weight)

    decoder = Decoder(TINY, slots=1, max_context=64)
    decoder.load(path)
    with torch.inference_mode():
        hidden = decoder.forward(
            torch.tensor(TOKENS), torch.arange(len(TOKENS)), torch.zeros(len(TOKENS)).long(),
            decoding=0, used=0, chunks=[Chunk(0, at, 1) for at in range(len(TOKENS))],
        )  # fmt: skip
        served = log_softmax(decoder.logits(hidden), -1)
    learnt, started = (log_softmax(logits(m), -1) for m in (learner.model, plain))
    relative = torch.linalg.norm(served - learnt) / torch.linalg.norm(learnt)
    assert relative < 1e-5
    assert torch.linalg.norm(learnt - started) / torch.linalg.norm(started) > 1e-3


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["policy.lora.dropout=0.1"], r"^policy\.lora\.dropout=0\.1: .*leave it 0$"),
        (["policy.lora.rank=-1"], r"^policy\.lora\.rank=-1: out of range"),
        (["policy.lora.rank=4", "policy.lora.alpha=0"], r"^policy\.lora\.alpha=0\.0: out of range"),
        (["policy.lora.rank=4", "policy.lora.targets=[]"], r"targets=\[\]: nothing to train"),
        (["policy.lora.rank=4", "policy.lora.targets=[lm_head]"], r"targets=lm_head: .*q_proj"),
    ],
)
def test_what_cannot_be_trained_is_refused_at_start(overrides: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        validate(compose(overrides))


def test_a_layer_that_the_policy_lacks_is_named_with_those_it_has() -> None:
    model = load_for_training(TINY, torch.float32)
    with pytest.raises(UsageError, match=r"targets=query: .*there is: down_proj, gate_proj, k_pro"):
        inject(model, Adapters(4, 16.0, ["query"], 0))


def test_without_peft_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run = compose(["policy.lora.rank=4"])
    validate(run)
    monkeypatch.delitem(sys.modules, "peft", raising=False)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(UsageError, match=r"rank=4: needs the peft package; pip install .*\[lora\]"):
        validate(run)
