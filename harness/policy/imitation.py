"""Imitation of demonstrations: batches, the small model's start, and the training loop.

At this size copying an operand from the context into an edit command appears abruptly within a few
hundred steps; whoever trains stops by a measured solve rate, not by the loss.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import log_softmax

from harness.policy.tokenizer import ChatTokens


@dataclass(frozen=True)
class ModelShape:
    """A Qwen3 decoder; 984,448 parameters at these settings."""

    vocab_size: int = 1024
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    head_dim: int = 32
    feed_forward: int = 384
    context: int = 1024


@dataclass(frozen=True)
class ImitationSettings:
    steps: int = 700
    batch_size: int = 16
    learning_rate: float = 3e-3
    warm_up: int = 40
    final_fraction: float = 0.1  # of the learning rate, at the last step
    weight_decay: float = 0.05
    gradient_clip: float = 1.0
    context_weight: float = 0.2  # of a prompt's or observation's token; an action's is 1
    seed: int = 0


@dataclass(frozen=True)
class Demonstration:
    """One solved task, from a line of environments.swebench.mini.experts' output."""

    first_message: str
    turns: Sequence[tuple[str, str]]


Sequence_T = tuple[list[int], list[int]]  # tokens, and 1 where the policy acts


def read_demonstrations(path: Path) -> list[Demonstration]:
    with path.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return [Demonstration(r["first_message"], [tuple(t) for t in r["turns"]]) for r in records]


def tokenise(demonstration: Demonstration, chat: ChatTokens) -> Sequence_T:
    """Exactly the tokens that a rollout with these actions would hold."""
    tokens = chat.first(demonstration.first_message)
    mask = [0] * len(tokens)
    last = len(demonstration.turns) - 1
    for n, (command, observation) in enumerate(demonstration.turns):
        action = chat.action(command)
        heard = chat.observation(observation) if n < last else []
        tokens += action + heard
        mask += [1] * len(action) + [0] * len(heard)
    return tokens, mask


def new_model(shape: ModelShape, seed: int) -> Any:
    """A fresh Qwen3ForCausalLM. Matrices start at 1/sqrt(inputs), half that where a branch joins
    the residual stream: transformers' uniform 0.02 is far too small at this width."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            head_dim=shape.head_dim,
            intermediate_size=shape.feed_forward,
            max_position_embeddings=shape.context,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=True,
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                continue
            joins = "o_proj" in name or "down_proj" in name
            scale = 0.5 if joins else 1.0
            deviation = 0.02 if "embed" in name else scale / math.sqrt(parameter.shape[1])
            parameter.normal_(0.0, deviation)
    return model


def batches(data: Sequence[Sequence_T], size: int, seed: int) -> Iterator[list[Sequence_T]]:
    """Endless batches of similar length: eight at a time are drawn, sorted, cut and shuffled."""
    draw = random.Random(seed)
    while True:
        pool = sorted((draw.choice(data) for _ in range(8 * size)), key=lambda s: len(s[0]))
        cut = [pool[i : i + size] for i in range(0, len(pool), size)]
        draw.shuffle(cut)
        yield from cut


def imitation_loss(
    model: Any, batch: Sequence[Sequence_T], context_weight: float
) -> tuple[torch.Tensor, float]:
    """(loss to differentiate, mean negative log-likelihood of an action token)."""
    length = max(len(tokens) for tokens, _ in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    weight = torch.zeros(len(batch), length)
    acts = torch.zeros(len(batch), length)
    for i, (tokens, mask) in enumerate(batch):
        ids[i, : len(tokens)] = torch.tensor(tokens)
        acts[i, : len(tokens)] = torch.tensor(mask, dtype=torch.float)
        weight[i, : len(tokens)] = context_weight
    weight = torch.where(acts > 0, 1.0, weight)[:, 1:]
    # Right padding needs no attention mask under causal attention.
    hidden = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    scored = weight > 0
    logits = model.get_output_embeddings()(hidden[scored])
    logprobs = log_softmax(logits, -1).gather(1, ids[:, 1:][scored][:, None])[:, 0]
    actions = acts[:, 1:][scored]
    loss = -(weight[scored] * logprobs).sum() / actions.sum()
    return loss, float(-(actions * logprobs.detach()).sum() / actions.sum())


def imitate(
    model: Any, data: Sequence[Sequence_T], settings: ImitationSettings
) -> Iterator[tuple[int, float]]:
    """Train; yields (steps done, action loss) after each step, so that the caller may stop."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        betas=(0.9, 0.98),
    )
    model.train()
    source = batches(data, settings.batch_size, settings.seed)
    for step in range(settings.steps):
        decay = 1 - (1 - settings.final_fraction) * step / settings.steps
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, (step + 1) / settings.warm_up) * decay
        loss, action_loss = imitation_loss(model, next(source), settings.context_weight)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip)
        optimizer.step()
        yield step + 1, action_loss
