"""The torch learner: forward, backward, ledger, optimizer step and publication, in its own process.

`TorchLearner` is the service (plain synchronous methods, also used directly by the parity check);
`TorchLearnerClient` is the Learner protocol over a worker process. Gradients never leave the
service.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import (
    _foreach_add_ as foreach_add_,  # pyright: ignore[reportPrivateImportUsage]
)
from torch import (
    _foreach_mul_ as foreach_mul_,  # pyright: ignore[reportPrivateImportUsage]
)
from torch import (
    _foreach_norm as foreach_norm,  # pyright: ignore[reportPrivateImportUsage]
)

from harness.cluster.worker import load
from harness.config import ObjectiveConfig
from harness.hardware import available_bytes
from harness.learner.client import ScoredTokens
from harness.learner.parity_bench import ParityBench
from harness.learner.scoring import Scorer, silence_dropout
from harness.policy import lora
from harness.policy.load import load_for_training
from harness.protocols import FoldSpec, Interval, ParityFigures, StepStats

Buffers = list[torch.Tensor]


class TorchLearner:
    """One rank. `optimizer` holds AdamW's learning_rate, beta1, beta2, weight_decay, and
    gradient_clip, the largest global norm of the normalised gradient; `ledger` names the ledger
    class by dotted path. `model` is one that is loaded already, and stands for `policy` and
    `adapters`. Callers pack their own chunks."""

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
        model: Any = None,
    ) -> None:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(True)
        if model is None:
            model = load_for_training(Path(policy), getattr(torch, dtype), adapters)
        silence_dropout(model)
        self.model = model
        self.model.train()
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=optimizer["learning_rate"],
            betas=(optimizer["beta1"], optimizer["beta2"]),
            weight_decay=optimizer["weight_decay"],
        )
        self._clip = optimizer["gradient_clip"]
        options = dict(ledger_options)
        storage = options.pop("dtype", dtype)
        self._dtype = getattr(torch, storage)
        self._ledger = load(ledger)(dtype=self._dtype if storage != dtype else None, **options)
        self._total: Buffers | None = None
        self._folder = Path(publish_folder)
        objective = objective or ObjectiveConfig()
        reference = None
        if objective.kl.coefficient > 0.0:
            reference = copy.deepcopy(self.model).requires_grad_(False)
        self.scorer = Scorer(self.model, temperature, objective, reference)
        self._intervals: list[Interval] = []
        self.version = 0

    @property
    def vocabulary(self) -> int:
        return self.model.config.vocab_size

    # -- gradients ---------------------------------------------------------------------------------

    def _backward(self, *terms: torch.Tensor | None) -> list[Buffers]:
        """A fresh gradient of each term, given away to the caller; zeros for None. The terms may
        share one graph, which is freed with the last."""
        present = [t for t in terms if t is not None]
        made: list[Buffers] = []
        for term in terms:
            for parameter in self.parameters:
                parameter.grad = None
            if term is not None:
                term.backward(retain_graph=term is not present[-1])
            made.append(
                [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
            )
        for parameter in self.parameters:
            parameter.grad = None
        return made

    def _weighted(self, rows: Sequence[ScoredTokens], coefficients: Sequence[float]) -> Buffers:
        """The whole objective's gradient of `rows`, in one backward."""
        score = self.scorer(rows, coefficients)
        if score is None:
            return self._backward(None)[0]
        always = score.always
        return self._backward(score.policy if always is None else score.policy + always)[0]

    def _captured(self, rows: Sequence[ScoredTokens]) -> tuple[Buffers, Buffers | None]:
        """The score gradient H of `rows` and, apart from it, that of the reward-independent terms
        (None where the objective has none)."""
        score = self.scorer(rows, [1.0] * len(rows))
        if score is None:
            return self._backward(None)[0], None
        if score.always is None:
            return self._backward(score.policy)[0], None
        gradients, always = self._backward(score.policy, score.always)
        return gradients, always

    def _add_to_total(self, gradients: Buffers, coefficient: float = 1.0) -> None:
        if self._total is not None:
            foreach_add_(self._total, gradients, alpha=coefficient)
            return
        self._total = [g.to(self._dtype) for g in gradients]
        if coefficient != 1.0:
            foreach_mul_(self._total, coefficient)

    def _busy(
        self, name: str, start_s: float, rows: Iterable[ScoredTokens] = (), **args: Any
    ) -> None:
        rows = list(rows)
        if rows:
            args["trajectories"] = [r.trajectory_id for r in rows]
            args["groups"] = sorted({r.group for r in rows})
            args["tokens"] = sum(len(r.tokens_T) for r in rows)
            args["padded"] = len(rows) * max(len(r.tokens_T) for r in rows)
        self._intervals.append(Interval("learner/0", name, start_s, time.monotonic(), args))

    # -- the verbs ---------------------------------------------------------------------------------

    def accumulate(self, rows: Sequence[ScoredTokens], coefficients: Sequence[float]) -> None:
        """Final-first (math.md section 2): one weighted backward straight into the total. A
        coefficient of exactly 0 costs nothing, unless there are reward-independent terms."""
        start_s = time.monotonic()
        regularised = self.scorer.regularised
        used = [(r, c) for r, c in zip(rows, coefficients, strict=True) if regularised or c != 0.0]
        if not used:
            return
        kept, weights = zip(*used, strict=True)
        outer = 1.0
        if len(kept) == 1 and not regularised:
            # After the backward, as a ledger does it: with a float64 total the update's bits do not
            # depend then on which trajectories were captured before their group closed.
            weights, outer = (1.0,), weights[0]
        gradients = self._weighted(kept, weights)
        if not all(map(math.isfinite, foreach_norm(gradients))):
            names = ", ".join(r.trajectory_id for r in kept)
            raise ValueError(f"{names}: the gradient is not finite; the update is refused")
        self._add_to_total(gradients, outer)
        self._busy("accumulate", start_s, kept)

    def capture(self, rows: Sequence[ScoredTokens]) -> None:
        """Score gradients into the ledger: one backward per (group, reward), one per trajectory
        while its reward is unknown."""
        parts: dict[tuple[int, float | str], list[ScoredTokens]] = {}
        for row in rows:
            key = row.trajectory_id if row.reward is None else row.reward
            parts.setdefault((row.group, key), []).append(row)
        for (group, _), part in parts.items():
            start_s = time.monotonic()
            ids = [r.trajectory_id for r in part]
            self._ledger.capture(group, ids, *self._captured(part))
            if part[0].reward is not None:
                self._ledger.commit(ids, part[0].reward)
            self._busy("capture", start_s, part)

    def reference_kl(self, rows: Sequence[ScoredTokens]) -> list[float]:
        """Each trajectory's sum of log policy - log reference. One forward per trajectory, so that
        its reward does not depend on which others ended at the same time."""
        start_s = time.monotonic()
        found = [self.scorer.reference_kl(row) for row in rows]
        self._busy("reference_kl", start_s, rows)
        return found

    def commit(self, trajectory_id: str, reward: float) -> None:
        self._ledger.commit([trajectory_id], reward)

    def discard(self, trajectory_ids: Sequence[str]) -> None:
        self._ledger.discard(trajectory_ids)

    def fold(self, spec: FoldSpec) -> None:
        start_s = time.monotonic()
        if self._total is None:
            self._total = [torch.zeros_like(p, dtype=self._dtype) for p in self.parameters]
        self._ledger.fold(spec.group, spec.coefficients, self._total)
        self._busy("fold", start_s, groups=[spec.group])

    def drop(self, group: int) -> None:
        self._ledger.drop(group)

    def update_direction(self, normaliser: float) -> Buffers:
        """Delta of math.md section 1 (ascent), without a step; the total is kept."""
        if self._total is None:
            return [torch.zeros_like(p) for p in self.parameters]
        return [t / normaliser for t in self._total]

    def step(self, normaliser: float) -> StepStats:
        """One AdamW step along the clipped direction. With nothing accumulated (every group
        degenerate or dropped) weights and optimizer state stay as they are; the version counts
        on."""
        start_s = time.monotonic()
        self._ledger.end_of_update()
        norm = self.apply(normaliser)
        self._total = None
        self.version += 1
        stats = StepStats(
            version=self.version,
            gradient_norm=norm,
            clipped=norm > self._clip,
            learning_rate=self.optimizer.param_groups[0]["lr"],
            ledger_buffers_peak=self._ledger.buffers_peak,
            ledger_bytes_peak=self._ledger.bytes_peak,
            buffer_bytes=sum(p.numel() for p in self.parameters) * self._dtype.itemsize,
            free_bytes=available_bytes(),
        )
        self._ledger.reset_peaks()
        self._busy("step", start_s)
        return stats

    def apply(self, normaliser: float) -> float:
        """The optimizer's step along the accumulated total, which is kept; returns the norm of the
        gradient before clipping (0 where nothing was accumulated, and then there is no step)."""
        if self._total is None:
            return 0.0
        for parameter, total in zip(self.parameters, self._total, strict=True):
            parameter.grad = (total / -normaliser).to(parameter.dtype)
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self._clip))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    # -- the parity check --------------------------------------------------------------------------

    def parity_begin(self, normaliser: float) -> None:
        """Set the accumulated update aside and open a bench; `accumulate` then fills others."""
        self._bench = ParityBench(self, normaliser)

    def parity_add(self) -> None:
        """Compare the update accumulated since, and clear it."""
        self._bench.add()

    def parity_end(self) -> ParityFigures:
        """Put the set-aside update back."""
        return self._bench.end()

    def set_aside(self) -> tuple[Buffers | None, list[Interval]]:
        """Take the total and the busy intervals out of the learner; `put_back` undoes it."""
        kept = self._total, self._intervals
        self._total, self._intervals = None, []
        return kept

    def put_back(self, kept: tuple[Buffers | None, list[Interval]]) -> None:
        self._total, self._intervals = kept

    def norm(self, buffers: Buffers) -> float:
        """Euclidean norm of a gradient or of a difference of weights."""
        return math.sqrt(math.fsum(float(n) ** 2 for n in foreach_norm(buffers)))

    def publish(self) -> tuple[str, int]:
        """Write the weights for the engine, atomically; the previous file is removed."""
        start_s = time.monotonic()
        path = self._folder / f"weights-{self.version:06d}.safetensors"
        save_file(lora.plain_weights(self.model), path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
        for old in self._folder.glob("weights-*.safetensors"):
            if old != path:
                old.unlink()
        self._busy("publish", start_s)
        return str(path), self.version

    def drain_intervals(self) -> list[Interval]:
        drained, self._intervals = self._intervals, []
        return drained
