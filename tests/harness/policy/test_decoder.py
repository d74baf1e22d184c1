"""The serving forward pass against transformers' own classes."""

from pathlib import Path

import pytest
import torch

from harness.policy.decoder import Chunk, Decoder
from harness.protocols import UsageError

COMMON = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
    "initializer_range": 0.3,
}  # fmt: skip


def build(kind: str, folder: Path) -> torch.nn.Module:
    """A random model with every norm weight away from one, saved to `folder`."""
    import transformers

    torch.manual_seed(3)
    if kind == "qwen3":
        config = transformers.Qwen3Config(
            **COMMON, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True
        )
        model = transformers.Qwen3ForCausalLM(config)
    else:
        config = transformers.LlamaConfig(
            **COMMON,
            num_key_value_heads=4,
            tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        )
        model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return model.eval()


@torch.inference_mode()
def run(
    decoder: Decoder, slot_tokens: dict[int, list[int]], chunk: int
) -> dict[int, dict[int, torch.Tensor]]:
    """By slot and position the logits of every chunk's last token; prompts fed `chunk` tokens at a
    time, all slots side by side."""
    logits: dict[int, dict[int, torch.Tensor]] = {slot: {} for slot in slot_tokens}
    for start in range(0, max(map(len, slot_tokens.values())), chunk):
        chunks = [
            Chunk(slot, start, len(tokens[start : start + chunk]))
            for slot, tokens in slot_tokens.items()
            if start < len(tokens)
        ]
        spans = [range(c.start, c.start + c.length) for c in chunks]
        x = decoder.forward(
            torch.tensor(
                [slot_tokens[c.slot][p] for c, s in zip(chunks, spans, strict=True) for p in s]
            ),
            torch.tensor([p for s in spans for p in s]),
            torch.tensor([c.slot for c in chunks for _ in range(c.length)]),
            decoding=0, used=0, chunks=chunks,
        )  # fmt: skip
        for c, row in zip(chunks, decoder.logits(x), strict=True):
            logits[c.slot][c.start + c.length - 1] = row
    return logits


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_prefill_equals_transformers(kind: str, tmp_path: Path) -> None:
    model = build(kind, tmp_path)
    tokens = torch.randint(0, 97, (3, 40), generator=torch.Generator().manual_seed(1))
    slot_tokens = {0: tokens[0].tolist(), 2: tokens[1, :23].tolist(), 3: tokens[2].tolist()}
    with torch.inference_mode():
        expected = {slot: model(torch.tensor([ids])).logits[0] for slot, ids in slot_tokens.items()}
    for chunk in (40, 7, 2, 1):
        got = run(Decoder(tmp_path, slots=4, max_context=48), slot_tokens, chunk)
        for slot, logits in expected.items():
            assert len(got[slot]) == -(-len(logits) // chunk)
            for position, row in got[slot].items():
                torch.testing.assert_close(row, logits[position], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_decoding_step_by_step_beside_a_prompt_equals_transformers(
    kind: str, tmp_path: Path
) -> None:
    model = build(kind, tmp_path)
    tokens = torch.randint(0, 97, (3, 30), generator=torch.Generator().manual_seed(2)).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor(tokens)).logits
        decoder = Decoder(tmp_path, slots=5, max_context=32)
        prompt = 5
        run(decoder, {0: tokens[0][:prompt], 1: tokens[1][: prompt + 3]}, chunk=8)
        for step in range(12):
            # Slots 0 and 1 decode at different positions, slot 2 idles, slot 4 reads its prompt.
            at = [prompt + step, prompt + 3 + step, decoder.max_context]
            chunk = Chunk(4, 2 * step, 2)
            x = decoder.forward(
                torch.tensor([tokens[0][at[0]], tokens[1][at[1]], 0, *tokens[2][2 * step :][:2]]),
                torch.tensor([*at, 2 * step, 2 * step + 1]),
                torch.tensor([0, 1, 2, 4, 4]),
                decoding=3, used=max(at[:2]) + 1, chunks=[chunk],
            )  # fmt: skip
            got = decoder.logits(x[[0, 1, 3]])
            rows = [expected[0, at[0]], expected[1, at[1]], expected[2, 2 * step + 1]]
            torch.testing.assert_close(got, torch.stack(rows), rtol=1e-4, atol=1e-4)


def test_swapped_slots_keep_their_keys(tmp_path: Path) -> None:
    build("qwen3", tmp_path)
    decoder = Decoder(tmp_path, slots=3, max_context=32)
    tokens = list(range(10))
    with torch.inference_mode():
        whole = run(decoder, {0: tokens}, chunk=10)[0][9]
        run(decoder, {0: tokens[:9], 1: tokens[::-1]}, chunk=10)
        decoder.swap(0, 2, columns=9)
        x = decoder.forward(
            torch.tensor([tokens[9]]), torch.tensor([9]), torch.tensor([2]),
            decoding=0, used=0, chunks=[Chunk(2, 9, 1)],
        )  # fmt: skip
        torch.testing.assert_close(decoder.logits(x)[0], whole, rtol=1e-4, atol=1e-4)


def test_refuses_what_it_does_not_compute(tmp_path: Path) -> None:
    build("llama", tmp_path)
    config = tmp_path / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"model_type": "llama"', '"model_type": "gpt2"'))
    with pytest.raises(UsageError, match="model_type=gpt2"):
        Decoder(tmp_path, slots=1, max_context=8)
    config.write_text(text.replace('"rope_type": "default"', '"rope_type": "llama3"'))
    with pytest.raises(UsageError, match="rope_type=llama3"):
        Decoder(tmp_path, slots=1, max_context=8)
    config.write_text(text)
    with pytest.raises(UsageError, match=r"max_context_tokens=65: .*=64; take at most that"):
        Decoder(tmp_path, slots=1, max_context=65)
