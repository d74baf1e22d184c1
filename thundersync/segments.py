"""Turn gradients: the forward pass of a finished turn runs while its tool call does, the backward
pass when the rest is known, and the sum is the gradient of the whole trajectory.

Source: math.md section 5, with the names of its ways. `retain` keeps each turn's graph and leaves a
backward pass for the end; `sweep` keeps keys and values alone and makes graphs again at the end,
piece by piece from the last to the first; `whole` keeps tokens alone. All three are one loop: what
later pieces send back to the keys and values of earlier ones (`Store.adjoint`) enters each piece
beside its own loss. So one trajectory may mix them, and past `max_live_bytes` it does.

Lives in a learner's process. A trajectory is begun, extended by a turn at a time, and finished or
discarded; where an agent rewrote its context, each sequence of `segments_split` is one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness.protocols import TurnCosts, UsageError
from thundersync.segments_costs import measure
from thundersync.segments_held import WAYS, Fallback, Finished, Held, Piece, Way
from thundersync.segments_memory import Saved
from thundersync.segments_pass import Score, Scored, check, run
from thundersync.segments_past import Shape, Store
from thundersync.segments_reverse import Buffers, pieces, reverse


class SegmentsError(RuntimeError):
    """A verb that would not give the trajectory's own gradient."""


class TurnGradients:
    """Trajectories under way in one learner process, at fixed weights.

    `way` is the most that a trajectory holds. `max_live_bytes` bounds what all of them hold between
    two verbs (graphs, keys and values; None: no bound): what does not fit is not retained, and
    where not even keys and values fit, tokens alone are kept. `chunk_tokens` is the length of a
    piece that is run again: more is faster and takes more activations. `parameters` order the
    buffers that gradients are added to, by default the model's trainable ones; a tied one is there
    once.

    Errors: UsageError for a model or a setting that has no exact turns, SegmentsError for verbs out
    of order and for weights that changed under a trajectory.
    """

    def __init__(
        self,
        model: Any,
        temperature: float = 1.0,
        way: Way = "retain",
        max_live_bytes: int | None = None,
        chunk_tokens: int = 512,
        parameters: Sequence[torch.nn.Parameter] | None = None,
    ) -> None:
        check(model)
        if way not in WAYS:
            raise UsageError(f"segments.way={way}: there is {', '.join(WAYS)}")
        if max_live_bytes is not None and max_live_bytes < 0:
            raise UsageError(f"segments.max_live_bytes={max_live_bytes}: take 0 or more, or null")
        if chunk_tokens < 1:
            raise UsageError(f"segments.chunk_tokens={chunk_tokens}: take at least 1")
        self._model, self._temperature, self._way = model, temperature, way
        self.max_live_bytes, self._chunk_tokens = max_live_bytes, chunk_tokens
        self._weights = list(model.parameters())
        own = [p for p in self._weights if p.requires_grad]
        self.parameters = list(parameters) if parameters is not None else own
        self._shape = Shape(model)
        self._under_way: dict[str, Held] = {}
        self._fallbacks: list[Fallback] = []
        self._token_bytes: float | None = None  # of a graph, the least that was measured
        self.live_bytes_peak = 0
        self.retain_from = 0
        """Turns of fewer tokens are not retained: a backward pass of their own would cost more than
        running them again."""
        self.beside_bytes = 0
        """What the owner holds beside, under the same bound."""

    # -- the verbs ---------------------------------------------------------------------------------

    def begin(self, trajectory_id: str) -> None:
        if trajectory_id in self._under_way:
            raise SegmentsError(f"{trajectory_id}: begun before and neither finished nor discarded")
        check(self._model)
        store = None if self._way == "whole" else Store(self._shape)
        self._under_way[trajectory_id] = Held(store, self._versions())

    def extend(
        self,
        trajectory_id: str,
        tokens_T: Sequence[int],
        action_mask_T: Sequence[int],
        last: bool = False,
    ) -> list[float] | None:
        """The forward pass of a finished turn: what its observation and its action (mask 1) add to
        the trajectory, either of them possibly nothing. The `last` one's graph is made as if it
        were run again at the end, which comes at once. Returns the log-probabilities of its action
        tokens, None where tokens alone are held."""
        held = self._get(trajectory_id)
        if len(tokens_T) != len(action_mask_T):
            raise SegmentsError(
                f"{trajectory_id}: {len(tokens_T)} tokens, a mask of another length"
            )
        if not held.tokens_T and any(action_mask_T[:1]):
            raise SegmentsError(
                f"{trajectory_id}: nothing comes before its first token to score it"
            )
        held.tokens_T.extend(tokens_T)
        held.action_mask_T.extend(action_mask_T)
        turn, held.turns = held.turns, held.turns + 1
        start, end = held.fed, held.inputs
        store = self._make_room(trajectory_id, held, turn, end)
        if store is None:
            return None
        if start == end:
            return []
        if last and end - start <= self._chunk_tokens:
            piece = Piece(start, end)
            piece.scored = scored = self._run(held, store, piece, writes=True)
            held.retained.append(piece)
        elif self._retains(end - start) and self._expects_room(trajectory_id, turn, end - start):
            scored = self._retain(trajectory_id, held, store, turn, Piece(start, end))
        else:
            scored = self._run(held, store, Piece(start, end), writes=True, graph=False)
        held.fed = end
        self.live_bytes_peak = max(self.live_bytes_peak, self.live_bytes)
        return scored.chosen().tolist()

    def finish(
        self, trajectory_id: str, weights: Sequence[Sequence[float]], into: Sequence[Buffers]
    ) -> Finished:
        """Add the gradient of sum_t w_t log pi(y_t) over the action tokens to `into`'s buffers,
        one list of buffers for each list of weights (one weight per action token)."""
        held = self._get(trajectory_id)
        count = sum(held.action_mask_T)
        for weights_N in weights:
            if len(weights_N) != count:
                raise SegmentsError(
                    f"{trajectory_id}: {len(weights_N)} weights for {count} action tokens"
                )
        vectors = [torch.tensor(w, dtype=torch.float64) for w in weights]

        def score(
            first: int, logprobs_NV: torch.Tensor, targets_N: torch.Tensor
        ) -> list[torch.Tensor]:
            logprobs_N = logprobs_NV.gather(1, targets_N[:, None])[:, 0]
            own = [v[first : first + len(targets_N)].to(logprobs_N) for v in vectors]
            # A token of weight 0 is left out, not multiplied: 0 x inf would be NaN.
            return [(torch.where(w != 0.0, logprobs_N, 0.0) * w).sum() for w in own]

        return self.finish_scored(trajectory_id, score, into)

    def finish_scored(self, trajectory_id: str, score: Score, into: Sequence[Buffers]) -> Finished:
        """The same for any sum over action tokens of functions of their own log-probabilities over
        the vocabulary (a KL, an entropy): `score` is called for action tokens in a row, the last
        ones first. After an error `into` may hold a part, and the trajectory is gone."""
        held = self._get(trajectory_id)
        del self._under_way[trajectory_id]
        left = pieces(held, self._chunk_tokens)
        retained = sum(p.end - p.start for p in left if p.scored is not None)
        done = Finished(
            trajectory_id,
            held.turns,
            retained_tokens=retained,
            rerun_tokens=held.inputs - retained,
            action_tokens=sum(held.action_mask_T),
        )
        held.retained.clear()  # `left` alone holds the graphs, and gives each up when it is done
        if done.action_tokens:
            reverse(held, left, self._shape, self._run, score, into, self.parameters)
        return done

    def discard(self, trajectory_id: str) -> None:
        """Forget a trajectory: it was lost, or its gradient is not wanted."""
        if self._under_way.pop(trajectory_id, None) is None:
            raise SegmentsError(f"{trajectory_id}: not under way")

    def end_of_update(self) -> None:
        """Before the optimizer's step: nothing may be under way."""
        if self._under_way:
            raise SegmentsError(
                f"the weights are about to change under {', '.join(self._under_way)}: finish or "
                "discard them before the step; turns need one step a batch at fixed weights"
            )

    # -- what is held ------------------------------------------------------------------------------

    @property
    def live_bytes(self) -> int:
        """Of graphs, keys and values, and what the owner says that it holds."""
        return self.beside_bytes + sum(held.live_bytes for held in self._under_way.values())

    def drain_fallbacks(self) -> list[Fallback]:
        """Since the last call."""
        drained, self._fallbacks = self._fallbacks, []
        return drained

    def _versions(self) -> int:
        """Changes with every change of a weight in place."""
        return sum(w._version for w in self._weights)

    def _get(self, trajectory_id: str) -> Held:
        held = self._under_way.get(trajectory_id)
        if held is None:
            raise SegmentsError(f"{trajectory_id}: not under way")
        if held.weights != self._versions():
            raise SegmentsError(
                f"{trajectory_id}: the weights changed while it was under way; discard it, and "
                "take no optimizer step before every trajectory of the batch is finished"
            )
        return held

    def costs(self) -> TurnCosts:
        """Measured now, on random tokens."""
        return measure(self._model, self._temperature)

    def _retains(self, tokens: int) -> bool:
        return self._way == "retain" and tokens >= self.retain_from

    def _fits(self, more_bytes: int) -> bool:
        return self.max_live_bytes is None or self.live_bytes + more_bytes <= self.max_live_bytes

    def _fell(self, trajectory_id: str, turn: int, way: Way, needed_bytes: float) -> None:
        assert self.max_live_bytes is not None
        self._fallbacks.append(
            Fallback(
                trajectory_id, turn, way, self.live_bytes, int(needed_bytes), self.max_live_bytes
            )
        )

    def _make_room(self, trajectory_id: str, held: Held, turn: int, end: int) -> Store | None:
        """The store with room for `end` tokens, at the cost of the trajectory's own graphs if need
        be; None where there is none."""
        store = held.store
        if store is None:
            return None
        before = store.held_bytes
        grown = store.bytes_for(end) != before
        more = store.bytes_for(end) - (0 if held.retained and grown else before)
        if not self._fits(more) and held.retained:
            self._fell(trajectory_id, turn, "sweep", more)
            held.release_graphs()
            more = store.bytes_for(end) - before
        if not self._fits(more):
            self._fell(trajectory_id, turn, "whole", more)
            held.store = None
            return None
        if grown and held.retained:
            held.old_bytes += before
        store.reserve(end, held.fed)
        return store

    def _expects_room(self, trajectory_id: str, turn: int, tokens: int) -> bool:
        """Whether a graph of `tokens` may fit, as far as one can tell before it is made."""
        expected = (self._token_bytes or 0.0) * tokens
        if self._fits(int(expected)):
            return True
        self._fell(trajectory_id, turn, "sweep", expected)
        return False

    def _retain(
        self, trajectory_id: str, held: Held, store: Store, turn: int, piece: Piece
    ) -> Scored:
        """Run with a graph, and keep it if it fits."""
        saved = Saved([*self._weights, store.values])
        with saved:
            scored = self._run(held, store, piece, writes=True)
        piece.graph_bytes = saved.live_bytes()
        measured = piece.graph_bytes / (piece.end - piece.start)
        self._token_bytes = min(measured, self._token_bytes or measured)
        if self._fits(piece.graph_bytes):
            piece.scored = scored
            held.retained.append(piece)
        else:
            self._fell(trajectory_id, turn, "sweep", piece.graph_bytes)
        return scored

    def _run(
        self, held: Held, store: Store, piece: Piece, writes: bool, graph: bool = True
    ) -> Scored:
        tokens_T, mask_T = held.tokens_T, held.action_mask_T
        span = piece.start, piece.end
        return run(self._model, self._temperature, store, tokens_T, mask_T, *span, graph, writes)
