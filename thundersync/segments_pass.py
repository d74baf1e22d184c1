"""One forward pass of a piece of a sequence, behind the keys and values of what came before it.

Source: math.md section 5. A piece is a run of input positions [start, end); it predicts the tokens
[start + 1, end + 1). So the hidden state that predicts a turn's first token lies in the turn's own
piece, as its first row, and the last token of a sequence is never an input: no token is scored
twice, none is left out, and a turn is scored completely when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import log_softmax

from harness.learner.passes import runs_again
from harness.protocols import UsageError
from thundersync.segments_past import Past, Span, Store, causal_mask, segment_attention

FAMILIES = ("llama", "qwen3")
# Rotary angles of the others depend on a position alone; these ones look at how long a pass is.
_LENGTH_DEPENDENT = ("dynamic", "longrope")

# (index of the first action token among the sequence's, log-probabilities over the vocabulary
# (N, V), tokens (N)) of N action tokens in a row -> one scalar per gradient, each with a graph.
Score = Callable[[int, torch.Tensor, torch.Tensor], Sequence[torch.Tensor]]


@dataclass
class Scored:
    """A piece's N action tokens, of which the first is number `first` of its sequence's. With a
    graph, `past` knows where gradients from later pieces enter it."""

    past: Past
    first: int
    logprobs_NV: torch.Tensor
    targets_N: torch.Tensor

    def chosen(self) -> torch.Tensor:
        """Log-probabilities of the action tokens themselves (N), without a graph."""
        return self.logprobs_NV.detach().gather(1, self.targets_N[:, None])[:, 0]


def check(model: Any) -> None:
    """Raises UsageError for a model whose turns have no exact gradient of their own here."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    rates = {m.p for m in model.modules() if isinstance(m, nn.Dropout)}
    rates |= {getattr(m, "attention_dropout", 0.0) for m in model.modules()}
    attention, rope_type = config._attn_implementation, rope.get("rope_type", "default")
    sliding = getattr(config, "use_sliding_window", None)
    for wrong, what, way_out in (
        (config.model_type not in FAMILIES, f"model_type={config.model_type}: not known to add "
         "nothing between a layer's keys and its attention", f"take {' or '.join(FAMILIES)}"),
        (attention != "sdpa", f"attn_implementation={attention}: segments bring masks of their own",
         "take sdpa"),
        (sliding, f"use_sliding_window={sliding}: a segment sees all earlier ones",
         "take a model without"),
        (rope_type in _LENGTH_DEPENDENT, f"rope_type={rope_type}: angles depend on how long a pass "
         "is, and a segment's pass is short", "take a model with another one"),
        (runs_again(model), "gradient checkpointing: it drops the keys and values of "
         "earlier segments without a word", "turn it off"),
        (any(rates), f"dropout={max(rates)}: a pass of a segment would drop other units than one "
         "of the whole", "take learner.dropout=0"),
    ):  # fmt: skip
        if wrong:
            raise UsageError(f"schedule.release=turn: {what}; {way_out}, or release=submit")


def run(
    model: Any,
    temperature: float,
    store: Store,
    tokens_T: Sequence[int],
    action_mask_T: Sequence[int],
    start: int,
    end: int,
    graph: bool,
    writes: bool,
) -> Scored:
    """Forward pass of the inputs [start, end) of a sequence. Logits are made at action tokens
    only."""
    weight = model.get_input_embeddings().weight
    tokens = torch.tensor(tokens_T[start : end + 1], device=weight.device)
    scored = torch.tensor(action_mask_T[start + 1 : end + 1], device=weight.device).bool()
    past = Past(Span(store, start, end, writes))
    with segment_attention(model), torch.set_grad_enabled(graph):
        hidden = model.base_model(
            input_ids=tokens[None, :-1],
            attention_mask=causal_mask(start, end, weight),
            position_ids=torch.arange(start, end, device=weight.device)[None],
            cache=past,
            use_cache=True,
        ).last_hidden_state
        logits_NV = model.get_output_embeddings()(hidden[0, scored])
        logprobs_NV = log_softmax(logits_NV / temperature, -1)
    return Scored(past, sum(action_mask_T[: start + 1]), logprobs_NV, tokens[1:][scored])


def backward(scored: Scored, term: torch.Tensor | None, later: bool, keep: bool) -> None:
    """From one scalar of a piece, and from what later pieces sent back, into the parameters'
    `.grad` and the adjoint of earlier pieces. `keep` the graph for another scalar."""
    roots, gradients = scored.past.entries() if later else ([], [])
    outputs: list[Any] = [*roots]
    if term is not None and term.requires_grad:
        outputs.append(term)
        gradients.append(torch.ones_like(term))
    if outputs:
        torch.autograd.backward(outputs, gradients, retain_graph=keep)
