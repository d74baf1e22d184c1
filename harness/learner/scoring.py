"""What a learner differentiates: the scores of trajectories at the current weights.

Source: math.md sections 1, 4 and 7. The policy term is linear in the coefficients, with detached
per-token weights; whatever does not depend on the reward (KL to a reference, entropy) is a term of
its own. With old log-probabilities of the same forward every clip is inactive: the surrogate's
gradient is that of coefficient x log-probability, so no ratio appears here but the importance
weights' own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import log_softmax
from torch.nn.utils.rnn import pad_sequence

from harness.config import ObjectiveConfig
from harness.learner.client import ScoredTokens
from harness.learner.distillation import Distillation
from harness.learner.importance import LOG_RATIO_LIMIT, Importance
from harness.learner.passes import runs_again
from harness.learner.precision import computing, weights_dtype
from harness.learner.vocabulary import Words, in_slices, whole
from harness.objectives.estimators import AGGREGATIONS
from harness.policy.attention import Sequences
from harness.policy.head import Head
from harness.sequences import spans


@dataclass(frozen=True)
class Score:
    """`policy`: sum over rows of coefficient x weighted log-probabilities, a scalar with a graph.
    `always`: the reward-independent terms of the same rows; None where the objective has none."""

    policy: torch.Tensor
    always: torch.Tensor | None = None


@dataclass(frozen=True)
class Packed:
    """The inputs of `rows` trajectories' sequences: one row each, padded on the right, or (with
    `sequences`) all in one row. The N action positions run row by row: `predicts` (the inputs'
    shape) marks where they are predicted, `targets_N` are their tokens, `row_N` the trajectories
    that they are of."""

    inputs: torch.Tensor
    predicts: torch.Tensor
    targets_N: torch.Tensor
    row_N: torch.Tensor
    rows: int
    sequences: Sequences | None = None

    def sums(self, values_N: torch.Tensor) -> torch.Tensor:
        """The sum of `values_N` over each row, at each of the row's positions."""
        rows = torch.zeros(self.rows, dtype=values_N.dtype, device=values_N.device)
        return rows.index_add(0, self.row_N, values_N)[self.row_N]


def pack(rows: Sequence[ScoredTokens], device: torch.device, packed: bool = False) -> Packed:
    """The last token of a sequence is no input. Right padding needs no attention mask under causal
    attention; `packed` needs no padding."""
    parts = [(n, row, *span) for n, row in enumerate(rows) for span in spans(row)]
    lengths = [end - start - 1 for *_, start, end in parts]
    tokens = [torch.tensor(row.tokens_T[start:end]) for _, row, start, end in parts]
    masks = [torch.tensor(row.action_mask_T[start:end]).bool() for _, row, start, end in parts]
    inputs = [t[:-1] for t in tokens]
    predicts = [m[1:] for m in masks]
    targets_N = torch.cat([t[1:][p] for t, p in zip(tokens, predicts, strict=True)])
    counts = torch.tensor([int(p.sum()) for p in predicts])
    row_N = torch.tensor([n for n, *_ in parts]).repeat_interleave(counts)
    if packed:
        shape = [torch.cat(inputs)[None], torch.cat(predicts)[None]]
    else:
        shape = [pad_sequence(inputs, batch_first=True), pad_sequence(predicts, batch_first=True)]
    return Packed(
        shape[0].to(device),
        shape[1].to(device),
        targets_N.to(device),
        row_N.to(device),
        len(rows),
        Sequences([n for n in lengths if n]) if packed else None,
    )


def _weighted(terms_N: torch.Tensor, weights_N: torch.Tensor) -> torch.Tensor:
    """The weighted sum. A token of weight 0 is left out, not multiplied: 0 x inf would be NaN."""
    return (torch.where(weights_N != 0.0, terms_N, 0.0) * weights_N).sum()


def silence_dropout(model: nn.Module) -> None:
    """Set every dropout rate of a model to 0, whatever its own configuration says."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0  # pyright: ignore[reportArgumentType]  # a float there


class Scorer:
    """Scores rows with `model` at `temperature`, as `objective` says. `reference` holds the frozen
    weights that a KL is taken to; only a KL needs it."""

    def __init__(
        self,
        model: Any,
        temperature: float,
        objective: ObjectiveConfig,
        reference: Any = None,
        dtype: str | None = None,
        packed: bool = False,
        logits_tokens: int = 0,
    ) -> None:
        """`dtype` as learner.dtype (None: the weights' own), `packed` as learner.packing,
        `logits_tokens` as learner.logits_tokens."""
        self.model = model
        self._dtype = dtype or str(model.dtype).removeprefix("torch.")
        self._again = runs_again(model)
        self._packed = packed
        self._logits_tokens = logits_tokens
        self.reference = reference
        self._temperature = temperature
        self._weight = AGGREGATIONS[objective.aggregation].weight
        self._kl = objective.kl
        self._in_loss = objective.kl.coefficient > 0.0 and objective.kl.place == "loss"
        self._entropy = objective.entropy.coefficient
        one_weight = (objective.clip.kind, objective.clip.form) == ("gspo", "sequence")
        weighted = objective.importance.kind != "none"
        self.importance = Importance(objective.importance, one_weight) if weighted else None
        distils = objective.name == "opd"
        self.distillation = Distillation(objective) if distils else None
        self._beside_task = distils and objective.task_weight > 0.0
        self.regularised = self._in_loss or self._entropy > 0.0 or self._beside_task

    def __call__(
        self, rows: Sequence[ScoredTokens], coefficients: Sequence[float], measure: bool = True
    ) -> Score | None:
        """None where no row has an action token: such rows have no gradient. Importance ratios
        enter the update's statistics unless `measure` is false."""
        used = [(r, c) for r, c in zip(rows, coefficients, strict=True) if any(r.action_mask_T)]
        if not used:
            return None
        kept = [r for r, _ in used]
        packed = self._pack(kept)
        words = self._words(self.model, packed, self._entropy > 0.0)
        reference_N = self._frozen_logprobs(self.reference, packed) if self._in_loss else None
        scales = [self.weight(r) for r in kept]
        given = [c for _, c in used]
        return self._score(kept, scales, given, packed, words, reference_N, measure)

    def weight(self, row: ScoredTokens) -> float:
        """Of each of a trajectory's tokens, by the aggregation."""
        return self._weight(sum(row.action_mask_T) if row.part_of is None else row.part_of)

    def in_pieces(self, row: ScoredTokens) -> Callable[..., Score]:
        """Scores a trajectory a few action tokens at a time, at coefficient and weight 1: a
        function of (index of the first among the trajectory's, log-probabilities over the
        vocabulary (N, V), tokens (N)). For terms in which no token looks at another."""
        reference = self.token_logprobs(row, self.reference) if self._in_loss else []
        behaviour_T = row.behaviour_logprobs_T or [0.0] * len(row.action_mask_T)
        acted = [b for b, m in zip(behaviour_T, row.action_mask_T, strict=True) if m]
        teacher = row.teacher

        def score(first: int, logprobs_NV: torch.Tensor, targets_N: torch.Tensor) -> Score:
            end = first + len(targets_N)
            piece = replace(
                row,
                tokens_T=[],
                action_mask_T=[1] * len(targets_N),
                behaviour_logprobs_T=acted[first:end],
                teacher=teacher and teacher.cut(first, end),
            )
            whose_N = torch.zeros_like(targets_N)
            packed = Packed(targets_N[None], whose_N[None] == 0, targets_N, whose_N, 1)
            reference_N = logprobs_NV.new_tensor(reference[first:end]) if self._in_loss else None
            words = whole(logprobs_NV, targets_N, self._entropy > 0.0)
            return self._score([piece], [1.0], [1.0], packed, words, reference_N, True)

        return score

    def _score(
        self,
        kept: Sequence[ScoredTokens],
        scales: Sequence[float],
        coefficients: Sequence[float],
        packed: Packed,
        words: Words,
        reference_N: torch.Tensor | None,
        measure: bool,
    ) -> Score:
        logprobs_N = words.logprobs_N
        scale_N = logprobs_N.new_tensor(scales)[packed.row_N]
        weights_N = scale_N * logprobs_N.new_tensor(coefficients)[packed.row_N]
        trusted_N = scale_N
        if self.importance is not None:
            ratios_N = self.importance.weights(kept, packed, logprobs_N.detach(), measure)
            weights_N, trusted_N = weights_N * ratios_N, scale_N * ratios_N
        terms_N = logprobs_N
        if self.distillation is not None:
            terms_N = self.distillation(kept, logprobs_N, words.logprobs_NV)
        policy = _weighted(logprobs_N if self._beside_task else terms_N, weights_N)
        if not self.regularised:
            return Score(policy)
        always = torch.zeros_like(policy)
        if self._beside_task:
            always = always + _weighted(terms_N, trusted_N)
        if reference_N is not None:
            kl_N = self._kl_estimate(logprobs_N, reference_N)
            always = always - self._kl.coefficient * (scale_N * kl_N).sum()
        if words.entropy_N is not None:
            always = always + self._entropy * (scale_N * words.entropy_N).sum()
        return Score(policy, always)

    def reference_kl(self, row: ScoredTokens) -> float:
        """Sum over a trajectory's action tokens of log policy - log reference (k1, math.md section
        4), without a gradient: what KL in the reward subtracts, before its coefficient."""
        pairs = zip(self.token_logprobs(row), self.token_logprobs(row, self.reference), strict=True)
        return math.fsum(ours - theirs for ours, theirs in pairs)

    def token_logprobs(self, row: ScoredTokens, model: Any = None) -> list[float]:
        """Log-probabilities of a trajectory's action tokens under `model`, by default the
        policy."""
        if not any(row.action_mask_T):
            return []
        packed = self._pack([row])
        return self._frozen_logprobs(model or self.model, packed).tolist()

    def _pack(self, rows: Sequence[ScoredTokens]) -> Packed:
        return pack(rows, self.model.get_input_embeddings().weight.device, self._packed)

    def _words(self, model: Any, packed: Packed, entropy: bool = False) -> Words:
        """What `model` says of the action tokens; logits are made at their positions only."""
        beside: dict[str, Any] = {}
        if packed.sequences is not None:
            places = packed.sequences.positions(packed.inputs.device)
            beside = {"position_ids": places, "side_by_side": packed.sequences}
        head = Head(model)
        made = (self._dtype, packed.inputs.device, self._again)
        with computing(*made):
            hidden_ND = model.base_model(
                input_ids=packed.inputs, use_cache=False, **beside
            ).last_hidden_state[packed.predicts]

        def distributions(hidden_nD: torch.Tensor) -> torch.Tensor:
            with computing(*made):
                logits_nV = head(hidden_nD)
            return log_softmax(logits_nV.to(weights_dtype(self._dtype)) / self._temperature, -1)

        if self._logits_tokens:
            tokens = self._logits_tokens
            return in_slices(distributions, hidden_ND, packed.targets_N, tokens, entropy)
        return whole(distributions(hidden_ND), packed.targets_N, entropy)

    def _frozen_logprobs(self, model: Any, packed: Packed) -> torch.Tensor:
        """Of the action tokens, without a gradient."""
        with torch.no_grad():
            return self._words(model, packed).logprobs_N

    def _kl_estimate(self, logprobs_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
        """k2 or k3 of each token (math.md section 4)."""
        if self._kl.estimator == "k2":
            return 0.5 * (logprobs_N - reference_N).square()
        log_ratio_N = (reference_N - logprobs_N).clamp(max=LOG_RATIO_LIMIT)
        return log_ratio_N.exp() - log_ratio_N - 1.0
