"""The torch learner: forward, backward, ledger, optimizer step and publication, in its own process.

`TorchLearner` is the service (plain synchronous methods, also used directly by the parity check);
`TorchLearnerClient` is the Learner protocol over a worker process. Gradients never leave the
service.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from harness import memory
from harness.cluster.worker import load
from harness.config import ObjectiveConfig
from harness.hardware import available_bytes
from harness.learner import saved
from harness.learner.client import ScoredTokens
from harness.learner.device import measured, open_device, settle
from harness.learner.gradients import Captured, Total, layout, together
from harness.learner.parity_bench import ParityVerbs
from harness.learner.passes import lay_side_by_side, recompute
from harness.learner.placement import Part, Placement, parts
from harness.learner.precision import weights_dtype
from harness.learner.scoring import Scorer, silence_dropout
from harness.learner.turn_options import TurnOptions
from harness.learner.turns import TurnVerbs, check_finite, open_turns
from harness.policy import lora
from harness.policy.load import load_for_training
from harness.protocols import FoldSpec, Interval, StepStats
from harness.sequences import padded

Buffers = list[torch.Tensor]


class TorchLearner(ParityVerbs, TurnVerbs):
    """One rank, at its `placement` among others. `optimizer` holds AdamW's learning_rate, beta1,
    beta2, weight_decay, and gradient_clip, the largest global norm of the normalised gradient;
    `ledger` names the ledger class by dotted path. `model` is one that is loaded already, and
    stands for `policy` and `adapters`. Callers pack their own chunks. Raises UsageError where
    the worst case of `ledger_plan` does not fit into the memory that is free (`free_bytes`; None
    measures it)."""

    def __init__(
        self,
        policy: str,
        optimizer: dict[str, float],
        ledger: str,
        ledger_options: dict[str, Any],
        publish_folder: str,
        dtype: str = "float32",
        temperature: float = 1.0,
        objective: ObjectiveConfig | None = None,
        threads: int = 1,
        adapters: lora.Adapters | None = None,
        placement: Placement | None = None,
        model: Any = None,
        ledger_plan: memory.LedgerPlan | None = None,
        free_bytes: int | None = None,
        turns: TurnOptions | None = None,
        checkpointing: bool = False,
        activations: str = "device",
        pass_bytes: int = 0,
        logits_tokens: int = 0,
    ) -> None:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(True)
        if model is None:
            model = load_for_training(Path(policy), weights_dtype(dtype), adapters)
        silence_dropout(model)
        recompute(model, checkpointing, activations)
        self._placement = placement or Placement()
        self._device = open_device(self._placement)
        self.model = model.to(self._device).train()
        objective = objective or ObjectiveConfig()
        reference = None
        if objective.kl.coefficient > 0.0:
            reference = copy.deepcopy(self.model).requires_grad_(False)
        packed = self._placement.packed
        made = (dtype, packed, logits_tokens)
        self.scorer = Scorer(self.model, temperature, objective, reference, *made)
        if packed:
            lay_side_by_side(self.scorer)
        options = dict(ledger_options)
        storage = options.pop("dtype", dtype)
        self._stored = stored = getattr(torch, storage)
        kept = weights_dtype(dtype)
        self._ledger = load(ledger)(dtype=stored if stored != kept else None, **options)
        # The total is never narrower than the gradient, whatever the ledger's storage is.
        self._dtype = torch.promote_types(kept, stored)
        self._name = f"learner/{self._placement.rank}"
        self._layout = layout(self.scorer, self._placement, self._dtype)
        self.parameters = self._layout.parameters
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=optimizer["learning_rate"],
            betas=(optimizer["beta1"], optimizer["beta2"]),
            weight_decay=optimizer["weight_decay"],
        )
        if ledger_plan is not None:
            placed = self._placement, self._device
            memory.check(ledger_plan, measured(*placed, self._layout, free_bytes, pass_bytes))
        if turns is not None:
            self._turns = open_turns(turns, self.scorer, self.parameters, temperature)
        self._clip = optimizer["gradient_clip"]
        self._total = Total()
        self._folder = Path(publish_folder)
        self._intervals: list[Interval] = []
        self.version = 0

    @property
    def vocabulary(self) -> int:
        return self.model.config.vocab_size

    def _busy(
        self, name: str, start_s: float, rows: Iterable[ScoredTokens] = (), **args: Any
    ) -> None:
        settle(self._device)
        rows = list(rows)
        if rows:
            args["trajectories"] = [r.trajectory_id for r in rows]
            args["groups"] = sorted({r.group for r in rows})
            args["tokens"] = sum(len(r.tokens_T) for r in rows)
            args["padded"] = padded(rows)
        self._intervals.append(Interval(self._name, name, start_s, time.monotonic(), args))

    # -- the verbs ---------------------------------------------------------------------------------

    def accumulate(self, rows: Sequence[ScoredTokens], coefficients: Sequence[float]) -> None:
        """Final-first (math.md section 2): one weighted backward straight into the total. A
        coefficient of exactly 0 costs nothing, unless there are reward-independent terms."""
        start_s = time.monotonic()
        regularised = self.scorer.regularised
        used = [(r, c) for r, c in zip(rows, coefficients, strict=True) if regularised or c != 0.0]
        begun = [(r, c) for r, c in used if self._begun(r)]
        used = [(r, c) for r, c in used if not self._begun(r)]
        for row, coefficient in begun:
            for made, outer in zip(self._finish(row), (coefficient, 1.0), strict=False):
                self._layout.add(self._total, made, outer)
        if not used and not self._placement.together:
            return
        kept, weights = [r for r, _ in used], [c for _, c in used]
        outer = 1.0
        if len(kept) == 1 and not regularised and not self._layout.joint:
            # After the backward, as a ledger does it: with a float64 total the update's bits do not
            # depend then on which trajectories were captured before their group closed.
            weights, outer = [1.0], weights[0]
        gradients = self._layout.weighted(kept, weights)
        check_finite(gradients, kept)
        self._layout.add(self._total, gradients, outer)
        if kept:
            self._busy("accumulate", start_s, kept)

    def capture(
        self, rows: Sequence[ScoredTokens], slots: Sequence[Sequence[Part | None]] | None = None
    ) -> None:
        """Score gradients into the ledger: one backward per (group, reward), one per trajectory
        while its reward is unknown; the exchange of shards after it does not count as busy. `rows`
        are this rank's. Where ranks hold shards, `slots` lists what they do side by side, each rank
        one part or nothing."""
        known = {r.trajectory_id: r for r in rows}
        own_parts = parts(rows, self._placement.chunk_tokens, self._placement.packed)
        for slot in slots or [[part] for part in own_parts]:
            start_s = time.monotonic()
            own = slot[self._placement.rank] if slots else slot[0]
            mine = [known[i] for i in own.trajectory_ids] if own else []
            begun = [row for row in mine if self._begun(row)]
            mine = [row for row in mine if not self._begun(row)]
            captured: list[Captured] = []
            if mine or not begun:
                captured = self._layout.captured(mine)
            if mine:
                self._busy("capture", start_s, mine)
            captured = together(captured, [self._finish(row) for row in begun])
            for part, made in zip(slot, self._layout.spread(captured), strict=True):
                if part is None:
                    continue
                self._ledger.capture(part.group, part.trajectory_ids, *made)
                if part.reward is not None:
                    self._ledger.commit(part.trajectory_ids, part.reward)

    def reference_kl(self, rows: Sequence[ScoredTokens]) -> list[float]:
        """Each trajectory's sum of log policy - log reference. One forward per trajectory, so that
        its reward does not depend on which others ended at the same time."""
        start_s = time.monotonic()
        found = [self._layout.reference_kl(row) for row in rows]
        self._busy("reference_kl", start_s, rows)
        return found

    def commit(self, trajectory_id: str, reward: float) -> None:
        self._ledger.commit([trajectory_id], reward)

    def discard(self, trajectory_ids: Sequence[str]) -> None:
        self._ledger.discard(trajectory_ids)

    def fold(self, spec: FoldSpec) -> None:
        start_s = time.monotonic()
        self._ledger.fold(spec.group, spec.coefficients, self._layout.fold_into(self._total))
        self._busy("fold", start_s, groups=[spec.group])

    def drop(self, group: int) -> None:
        self._ledger.drop(group)

    def update_direction(self, normaliser: float) -> Buffers:
        """Delta of math.md section 1 (ascent) over all ranks, without a step; the total is kept.
        Under fsdp this rank's shards of it."""
        update = self._layout.summed(self._total)
        return [t / normaliser for t in update or self._layout.zeros()]

    def step(self, normaliser: float) -> StepStats:
        """One AdamW step along the clipped direction. With nothing accumulated (every group
        degenerate or dropped) weights and optimizer state stay as they are; the version counts
        on."""
        start_s = time.monotonic()
        self._ledger.end_of_update()
        if self._turns is not None:
            self._turns.end_of_update()
        norm = self.apply(normaliser)
        self._total = Total()
        self.version += 1
        stats = StepStats(
            version=self.version,
            gradient_norm=norm,
            clipped=norm > self._clip,
            learning_rate=self.optimizer.param_groups[0]["lr"],
            ledger_buffers_peak=self._ledger.buffers_peak,
            ledger_bytes_peak=self._ledger.bytes_peak,
            buffer_bytes=self._layout.buffer_elements * self._stored.itemsize,
            free_bytes=available_bytes(),
            ratios=self.scorer.importance and self.scorer.importance.take(),
            turns=self._turns and self._turns.take_stats(),
            turn_costs=self._turns and self._turns.costs,
        )
        self._ledger.reset_peaks()
        self._busy("step", start_s)
        return stats

    def apply(self, normaliser: float) -> float:
        """The optimizer's step along the accumulated total, which is kept; returns the norm of the
        gradient before clipping (0 where nothing was accumulated, and then there is no step)."""
        update = self._layout.summed(self._total)
        if update is None:
            return 0.0
        self._layout.assign(update, -normaliser)
        norm = self._layout.clip(self._clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def set_aside(self) -> tuple[Total, list[Interval], Any]:
        """Take the total, the busy intervals and the sums of importance ratios out of the learner;
        `put_back` undoes it."""
        importance = self.scorer.importance
        kept = self._total, self._intervals, importance and importance.sums
        self.put_back((Total(), [], None))
        return kept

    def put_back(self, kept: tuple[Total, list[Interval], Any]) -> None:
        self._total, self._intervals, sums = kept
        if self.scorer.importance is not None:
            self.scorer.importance.sums = sums

    def norm(self, buffers: Buffers) -> float:
        """Euclidean norm of a gradient or of a difference of weights, over all ranks."""
        return self._layout.norm(buffers)

    def publish(self) -> tuple[str, int]:
        """Rank 0 writes the weights for the engine, atomically; the previous file is removed."""
        start_s = time.monotonic()
        path = self._folder / f"weights-{self.version:06d}.safetensors"
        weights = self._layout.weights()
        if weights is None:
            return str(path), self.version
        save_file(weights, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
        for old in self._folder.glob("weights-*.safetensors"):
            if old != path:
                old.unlink()
        self._busy("publish", start_s)
        return str(path), self.version

    def save(self, folder: str) -> dict[str, Any]:
        """Weights and optimizer state into a checkpoint's folder, and what else there is, as JSON;
        at the end of an update, when totals and ledgers are empty."""
        saved.write(folder, self._placement, self._named(), self.optimizer)
        return {"version": self.version, "turns": self.turn_settings()}

    def restore(self, folder: str, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint's learner ended. Raises UsageError for another policy's."""
        saved.read(folder, self._placement, self._named(), self.optimizer)
        self.version = state["version"]
        if self._turns is not None and state["turns"] is not None:
            self._turns.settle(state["turns"])

    def _named(self) -> dict[str, torch.nn.Parameter]:
        parameters = self._layout.parameters
        return dict(zip(saved.names(self.model, parameters), parameters, strict=True))

    def drain_intervals(self) -> list[Interval]:
        drained, self._intervals = self._intervals, []
        return drained
