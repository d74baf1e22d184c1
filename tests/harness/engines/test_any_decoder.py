"""Policies that the fused decoder does not compute, through transformers' own classes: the tokens'
log-probabilities are those of the model's own forward pass."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from harness.engines.torch_engine import TorchEngine
from harness.policy.any_decoder import AnyDecoder
from harness.policy.architecture import fused
from harness.policy.decoder import Decoder
from harness.protocols import Completion, Generation, UsageError

SIZE: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 128, "initializer_range": 0.3,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
SHARED = SIZE | {"num_key_value_heads": 2, "head_dim": 8}
# A bias; parallel blocks; a window shorter than the sequences, in some layers or in all; bounded
# scores and logits (without sdpa); learned positions, and a head behind a part of the body.
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": SHARED,
    "gpt_neox": SIZE,
    "mistral": SHARED | {"sliding_window": 8},
    "gemma2": SHARED | {"sliding_window": 8, "attn_logit_softcapping": 2.0,
                        "final_logit_softcapping": 3.0},
    "gemma3_text": SHARED | {"sliding_window": 8},
    "opt": {"vocab_size": 61, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": 128, "init_std": 0.3,
            "word_embed_proj_dim": 32},
}  # fmt: skip


def save(kind: str, folder: Path, seed: int = 1) -> Any:
    import transformers

    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(kind, **FAMILIES[kind])
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return model.eval()


@torch.inference_mode()
def logprobs_of(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    logits = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits
    logprobs = torch.log_softmax(logits[0, len(prompt) - 1 : -1], -1)
    return logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0]


def same(model: Any, prompt: list[int], done: Completion) -> None:
    expected = logprobs_of(model, prompt, done.tokens_T)
    torch.testing.assert_close(torch.tensor(done.logprobs_T), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_token_has_the_log_probability_of_the_models_own_forward(
    kind: str, tmp_path: Path, complete: Callable[..., list[Completion]]
) -> None:
    model = save(kind, tmp_path)
    assert not fused(tmp_path)
    # Fewer slots than sessions: some are read again; prompts are read in pieces beside decoding.
    engine = TorchEngine(str(tmp_path), slots=3, max_context=96, prompt_tokens=7)
    draw = random.Random(0)
    contexts = [[draw.randrange(61) for _ in range(draw.randint(3, 30))] for _ in range(5)]
    for _ in range(2):  # turns
        asked = [
            Generation(str(n), context, draw.randint(3, 12), 1.0, n, ())
            for n, context in enumerate(contexts)
        ]
        for n, done in enumerate(complete(engine, *asked)):
            same(model, contexts[n], done)
            contexts[n] += [*done.tokens_T, *(draw.randrange(61) for _ in range(4))]
    tokens = [5, 9, 2]
    (forced,) = complete(engine, Generation("f", [1, 2], 3, 1.0, 0, (), forced_T=tokens))
    assert forced.tokens_T == tokens
    same(model, [1, 2], forced)


@pytest.mark.parametrize("kind", ["gpt_neox", "gemma2"])
def test_new_weights_are_those_that_a_learner_publishes(
    kind: str, tmp_path: Path, complete: Callable[..., list[Completion]]
) -> None:
    from harness.policy.lora import plain_weights

    save(kind, tmp_path / "first", seed=1)
    other = save(kind, tmp_path / "second", seed=2)
    engine = TorchEngine(str(tmp_path / "first"), slots=2, max_context=64)
    prompt = [4, 8, 15, 16]
    complete(engine, Generation("s", prompt, 3, 1.0, 0, ()))
    save_file(plain_weights(other), tmp_path / "weights.safetensors")
    engine.update_weights(lambda _: None, str(tmp_path / "weights.safetensors"), 1)
    (done,) = complete(engine, Generation("s", prompt, 6, 1.0, 0, ()))
    same(other, prompt, done)
    assert [span.version for span in done.version_spans] == [1]


def test_the_fused_decoder_is_taken_where_it_computes_the_policy(
    policy: Path, tmp_path: Path, complete: Callable[..., list[Completion]]
) -> None:
    assert fused(policy)
    engine = TorchEngine(str(policy), slots=2, max_context=64)
    assert isinstance(engine._decoder, Decoder)
    # Both compute the same of it.
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    (quick,) = complete(engine, Generation("s", prompt, 8, 1.0, 7, ()))
    engine._decoder = AnyDecoder(policy, slots=2, max_context=64)
    (slow,) = complete(engine, Generation("t", prompt, 8, 1.0, 7, ()))
    assert slow.tokens_T == quick.tokens_T
    torch.testing.assert_close(slow.logprobs_T, quick.logprobs_T, rtol=1e-4, atol=1e-4)
    # Weights in several files are not read by the fused one.
    for name in ("config.json",):
        (tmp_path / name).write_text((policy / name).read_text())
    assert not fused(tmp_path)


def test_a_model_whose_attention_takes_more_than_it_is_asked_is_refused(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4)
    transformers.BloomForCausalLM(config).save_pretrained(tmp_path)  # ALiBi
    with pytest.raises(UsageError, match="model_type=bloom cannot be served by engine=torch") as e:
        TorchEngine(str(tmp_path), slots=2, max_context=64)
    assert "\n" not in str(e.value)


def test_what_is_no_causal_model_is_one_clear_line(tmp_path: Path) -> None:
    for kind in ("t5", "no_such_model"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(UsageError, match="no causal language model of transformers") as e:
            TorchEngine(str(tmp_path), slots=2, max_context=64)
        assert "\n" not in str(e.value)


def test_weights_of_another_policy_are_refused(tmp_path: Path) -> None:
    save("gpt_neox", tmp_path)
    decoder = AnyDecoder(tmp_path, slots=2, max_context=64)
    with pytest.raises(UsageError, match="weights: not of this policy"):
        decoder.take({"embed": torch.zeros(1)})
