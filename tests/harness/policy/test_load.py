"""The bundled policy, and folders of one's own."""

import json
from pathlib import Path

import pytest
import torch

from harness.policy.decoder import Chunk, Decoder
from harness.policy.load import load_for_training, resolve
from harness.policy.tokenizer import ChatTokens
from harness.protocols import UsageError

TINY = resolve("tiny")


def test_the_bundled_policy_says_how_it_was_made() -> None:
    record = json.loads((TINY / "WARM_START.json").read_text())
    assert record["parameters"] == 984_448
    assert record["command"].startswith("python -m harness.policy.warm_start ")
    assert 0.20 <= record["eval"]["solve_rate"] <= 0.45  # it can learn, and has much to learn
    assert (TINY / "model.safetensors").stat().st_size < 12e6


def test_learner_and_engine_read_the_same_weights() -> None:
    chat = ChatTokens(TINY)
    prompt = chat.first("area_x adds the sides.\nFiles: shop/core.py")
    model = load_for_training(TINY, torch.float32).eval()
    decoder = Decoder(TINY, slots=1, max_context=640)
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0]
        hidden = decoder.forward(
            torch.tensor(prompt), torch.arange(len(prompt)), torch.zeros(len(prompt)).long(),
            decoding=0, used=0, chunks=[Chunk(0, 0, len(prompt))],
        )  # fmt: skip
        torch.testing.assert_close(decoder.logits(hidden), expected, rtol=1e-4, atol=1e-4)
    assert model.config.vocab_size == chat.vocab_size
    assert model.config.eos_token_id == chat.stop_tokens[0]
    assert model.config._attn_implementation == "sdpa"
    assert load_for_training(TINY, torch.float64).dtype == torch.float64


def test_transformers_reads_the_bundled_tokenizer() -> None:
    from transformers import AutoTokenizer

    chat, reference = ChatTokens(TINY), AutoTokenizer.from_pretrained(TINY)
    message = [{"role": "user", "content": "f(3) should be -1, got 1.\nFiles: a/b.py"}]
    rendered = reference.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
    assert chat.first(message[0]["content"]) == rendered
    assert reference.eos_token_id == chat.stop_tokens[0]


def test_folders_and_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve(tmp_path) == tmp_path
    with pytest.raises(UsageError, match=r"policy=.*nowhere"):
        resolve(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="policy=smollm2"):
        resolve("smollm2")
