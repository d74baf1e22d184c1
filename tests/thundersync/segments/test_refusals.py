"""What has no exact turns is one clear error, before or instead of a wrong gradient."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from harness.protocols import UsageError
from tests.thundersync.segments.conftest import (
    TEMPERATURE,
    difference,
    make,
    one_shot,
    trainable,
    trajectory,
    zeros,
)  # fmt: skip
from thundersync.segments import SegmentsError, TurnGradients
from thundersync.segments_held import WAYS, Way

TAKEN = trajectory([(4, 3), (2, 2)])


def begun(model: Any, way: Way = "retain") -> TurnGradients:
    turns = TurnGradients(model, TEMPERATURE, way)
    turns.begin("a")
    turns.extend("a", *TAKEN.turns[0])
    return turns


def checkpointing(model: Any) -> Any:
    model.activation_checkpointing_enable()
    return model


@pytest.mark.parametrize(
    ("make_model", "message"),
    [
        (lambda: checkpointing(make("Qwen3")), "gradient checkpointing: it drops the keys"),
        (lambda: make("Llama", attention_dropout=0.1), "dropout=0.1: .*learner.dropout=0"),
        (lambda: make("Mistral"), "model_type=mistral: not known"),
        (
            lambda: make("Qwen3", use_sliding_window=True, max_window_layers=1),
            "use_sliding_window=True",
        ),
        (
            lambda: make(
                "Llama",
                rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
            ),
            "rope_type=dynamic",
        ),
    ],
    ids=["checkpointing", "dropout", "family", "window", "rope"],
)
def test_a_model_without_exact_turns(make_model: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"schedule.release=turn: {message}.*or release=submit"):
        TurnGradients(make_model(), TEMPERATURE)


def test_eager_attention() -> None:
    model = make("Llama")
    model.config._attn_implementation = "eager"
    with pytest.raises(UsageError, match=r"attn_implementation=eager.*take sdpa"):
        TurnGradients(model, TEMPERATURE)


def test_checkpointing_that_is_turned_on_later() -> None:
    """transformers would drop the cache with a warning, and every turn would be its own world."""
    model = make("Qwen3")
    turns = begun(model)
    checkpointing(model)
    with pytest.raises(UsageError, match="gradient checkpointing"):
        turns.begin("b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"way": "replay"}, "segments.way=replay: there is retain, sweep, whole"),
        ({"max_live_bytes": -1}, "segments.max_live_bytes=-1"),
        ({"chunk_tokens": 0}, "segments.chunk_tokens=0"),
    ],
)
def test_a_setting_that_means_nothing(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        TurnGradients(make("Llama"), TEMPERATURE, **options)


@pytest.mark.parametrize("way", WAYS)
def test_a_step_under_a_trajectory(way: Way) -> None:
    """Before it, the learner asks; after it, neither verb gives a gradient of mixed weights."""
    model = make("Qwen3")
    turns = begun(model, way)
    with pytest.raises(SegmentsError, match="about to change under a: finish or discard"):
        turns.end_of_update()
    optimizer = torch.optim.AdamW(trainable(model), lr=1e-3)
    for parameter in trainable(model):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    with pytest.raises(SegmentsError, match="a: the weights changed while it was under way"):
        turns.extend("a", *TAKEN.turns[1])
    with pytest.raises(SegmentsError, match="a: the weights changed while it was under way"):
        turns.finish("a", [TAKEN.weights_N[:3]], [zeros(model)])
    turns.discard("a")
    turns.end_of_update()
    turns.begin("a")
    for turn in TAKEN.turns:
        turns.extend("a", *turn)
    found = zeros(model)
    turns.finish("a", [TAKEN.weights_N], [found])
    assert difference(found, one_shot(model, TAKEN)) < 1e-5


def test_verbs_out_of_order() -> None:
    turns = begun(make("Llama"))
    with pytest.raises(SegmentsError, match="a: begun before"):
        turns.begin("a")
    for verb in (
        lambda: turns.extend("b", [1], [0]),
        lambda: turns.finish("b", [[]], [[]]),
        lambda: turns.discard("b"),
    ):
        with pytest.raises(SegmentsError, match="b: not under way"):
            verb()


def test_a_turn_or_weights_that_do_not_fit() -> None:
    model = make("Llama")
    turns = begun(model)
    with pytest.raises(SegmentsError, match="a: 2 tokens, a mask of another length"):
        turns.extend("a", [1, 2], [0])
    with pytest.raises(SegmentsError, match="a: 2 weights for 3 action tokens"):
        turns.finish("a", [[1.0, 1.0]], [zeros(model)])
    turns.finish("a", [[1.0, 1.0, 1.0]], [zeros(model)])  # it was still there
    turns.begin("b")
    with pytest.raises(SegmentsError, match="b: nothing comes before its first token"):
        turns.extend("b", [1, 2], [1, 1])


def test_a_token_of_weight_zero_is_left_out_even_where_it_is_impossible() -> None:
    """0 x inf would be NaN."""
    model, taken = make("Qwen3", tied=False), trajectory([(4, 1)])
    tokens = torch.tensor(taken.tokens_T)
    with torch.no_grad():
        hidden = model.model(input_ids=tokens[None, :-1]).last_hidden_state[0, -1]
        model.lm_head.weight[tokens[-1]] = -1e38 * hidden.sign()
    turns, found = TurnGradients(model, TEMPERATURE), zeros(model)
    turns.begin("a")
    assert turns.extend("a", *taken.turns[0]) == [-torch.inf]
    turns.finish("a", [[0.0]], [found])
    assert not any(g.any() for g in found)


def test_a_score_that_raises_leaves_nothing_behind() -> None:
    model = make("Llama")
    turns = begun(model)

    def score(*_: Any) -> list[torch.Tensor]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        turns.finish_scored("a", score, [zeros(model)])
    assert turns.live_bytes == 0
    assert all(p.grad is None for p in model.parameters())
    turns.end_of_update()
