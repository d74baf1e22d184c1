"""One policy's parity figures: streamed against synchronous updates of the same trajectories.

Source: math.md section 6. The model is loaded once; every case builds a learner around it, whose
optimizer, ledger and total are new. Gradients are compared at a learning rate of 0, which leaves
the weights as they are; for the parameter gap they are put back afterwards.
"""

from __future__ import annotations

import copy
import gc
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness.cluster.worker import load
from harness.config import Config, ObjectiveConfig
from harness.learner.torch_learner import TorchLearner
from harness.objectives import opd
from harness.objectives.estimators import AGGREGATIONS, ESTIMATORS
from harness.objectives.whole import whole_trajectories
from harness.packing import pack
from harness.parity import GAP_FACTOR, GRADIENT_FACTOR
from harness.parts import learner_options
from harness.policy.load import load_for_training
from harness.policy.lora import Adapters
from harness.protocols import Group, Schedule
from thundersync.recorded import InlineLearner, Pack, RecordedBatch, permuted_packing, play
from thundersync.stream import Stream
from thundersync.synthetic import arrival, synthetic_groups
from thundersync.terms import furnish, left_behind
from thundersync.true_norms import use_true_norms

SYNC = "baselines.sync:Sync"
RELEASES = ("batch", "group", "reward", "submit")
# Of turn gradients; bounded: half of the memory that retain takes, so that it falls back.
WAYS = ("retain", "sweep", "whole", "bounded")
CONTEXTS = ("shared", "rewritten")  # of a trajectory's turns: one sequence, or several
FORMS = ("affine", "bucket", "auto")
PERMUTATIONS = 20
FLOAT64_LIMIT = 1e-12
GAP_UPDATES = 4
NO_BOUND = 1 << 40
# Six rewards a group: more than two buckets, and not evenly spaced.
REWARDS = (0.0, 1.0, 0.25, 1.0, 0.7, 0.0)


def relative_error(got: torch.Tensor, reference: torch.Tensor) -> float:
    """Relative gradient error. Raises ValueError where the reference is zero: that checks
    nothing."""
    norm = torch.linalg.norm(reference)
    if norm == 0:
        raise ValueError("the reference update is zero (all groups degenerate): nothing to compare")
    return float(torch.linalg.norm(got - reference) / norm)


@dataclass(frozen=True)
class Case:
    """The defaults are the paper's."""

    estimator: str = "mean_std_population"
    aggregation: str = "token_mean"
    release: str = "reward"
    form: str = "auto"
    way: str = ""
    context: str = "shared"

    @property
    def name(self) -> str:
        """Without what is not there to choose, and `shared`, which is the rule."""
        parts = astuple(self)
        return "/".join(part for part in parts if part and part != "shared")

    @property
    def objective(self) -> tuple[str, str]:
        return self.estimator, self.aggregation


def cases() -> Iterator[Case]:
    """Every combination that is not refused at start."""
    for case in itertools.starmap(
        Case, itertools.product(ESTIMATORS, AGGREGATIONS, RELEASES, FORMS)
    ):
        if case.form != "affine" or ESTIMATORS[case.estimator].affine:
            yield case
    for aggregation, context in itertools.product(AGGREGATIONS, CONTEXTS):
        paper = replace(Case(), aggregation=aggregation, context=context)
        if context == "rewritten":
            yield replace(paper, release="batch")
            yield replace(paper, release="submit")
        for way in WAYS:  # the same whatever the estimator and the ledger's form
            yield replace(paper, release="turn", way=way)


@dataclass(frozen=True)
class Shape:
    """A batch's groups, trajectories a group, and the longest trajectory in tokens."""

    groups: int = 4
    size: int = 6
    tokens: int = 90


class Check:
    """Figures of one policy in one dtype; synchronous references and controls are computed once.

    `permutations` synchronous updates with permuted rows make a control; fewer than 20 make the
    check stricter. With `adapters` these alone are trained, from a random start: at B = 0 the
    gradient of A would vanish. Cases take their estimator and aggregation into `objective`."""

    def __init__(
        self,
        policy: Path,
        dtype: str,
        folder: Path,
        shape: Shape | None = None,
        permutations: int = PERMUTATIONS,
        adapters: Adapters | None = None,
        objective: ObjectiveConfig | None = None,
    ) -> None:
        self._objective = objective or ObjectiveConfig()
        self._policy, self._dtype, self._folder = policy, dtype, folder
        self._shape = shape or Shape()
        self._permutations = permutations
        self.model: Any = load_for_training(policy, getattr(torch, dtype), adapters)
        if dtype == "float64":
            use_true_norms(self.model)
        generator = torch.Generator().manual_seed(0)
        for name, parameter in self.model.named_parameters():
            if ".lora_B." in name:
                parameter.data.normal_(0.0, 0.02, generator=generator)
        self._trainable = [p for p in self.model.parameters() if p.requires_grad]
        self._groups = {context: self._recorded(1, context) for context in CONTEXTS}
        self._references: dict[tuple[str, str, str], tuple[torch.Tensor, float | None]] = {}
        self._gap_reference: tuple[torch.Tensor, float] | None = None
        self._most_bytes: dict[str, int] = {}  # that retain held, by context

    @property
    def parameters(self) -> int:
        """How many are trained."""
        return sum(p.numel() for p in self._trainable)

    @property
    def tokens(self) -> int:
        """Of the batch whose gradients are compared."""
        return sum(len(t.tokens_T) for g in self._groups["shared"] for t in g.trajectories)

    def _recorded(self, seed: int, context: str = "shared") -> list[Group]:
        vocabulary, rewritten = self.model.config.vocab_size, context == "rewritten"
        shape = astuple(self._shape)
        groups = synthetic_groups(seed, vocabulary, REWARDS, *shape, rewritten=rewritten)
        furnish(groups, self.model, self._objective, seed)
        return groups

    def _config(self, case: Case, learning_rate: float = 0.0) -> Config:
        config = Config(objective=copy.deepcopy(self._objective))
        config.objective.estimator, config.objective.aggregation = case.objective
        config.schedule.release, config.schedule.chunk_tokens = case.release, 256
        config.schedule.learning_rate = learning_rate
        config.learner.dtype = config.ledger.dtype = self._dtype
        config.ledger.form = case.form
        config.segments.way = case.way if case.way in ("retain", "sweep") else "retain"
        config.segments.chunk_tokens = 32  # so that a sweep has several passes
        config.segments.max_live_bytes = {
            "whole": 0, "bounded": self._most_bytes.get(case.context, 0) // 2
        }.get(case.way, NO_BOUND)  # fmt: skip
        config.rollout.groups_per_batch = self._shape.groups
        config.rollout.group_size = self._shape.size
        return config

    def _play(
        self, schedule: type, config: Config, batches: list[RecordedBatch], packing: Pack = pack
    ) -> InlineLearner:
        options = learner_options(config, self._policy, self._folder)
        gc.collect()  # the last case's learner may be in a cycle, and its gradients are large
        learner = TorchLearner(**options, model=self.model)
        if learner.scorer.reference is not None:
            learner.scorer.reference = left_behind(self.model)
        made: Schedule = schedule(config)
        return play(made, learner, config, batches, packing)

    def _synchronous(
        self, config: Config, groups: list[list[Group]], seed: int | None = None
    ) -> InlineLearner:
        """The synchronous schedule; with a seed, on permuted rows and chunks."""
        batches = [RecordedBatch(g, arrival(g, seed or 0), burst=3) for g in groups]
        whole = next(whole_trajectories(config.objective), None) is not None
        packing = pack if seed is None else permuted_packing(seed, whole)
        return self._play(load(SYNC), config, batches, packing)

    def _streamed(self, case: Case, config: Config, groups: list[list[Group]]) -> InlineLearner:
        """In adversarial orders of arrival, the case's own: rewards late; of each batch one
        trajectory lost after its capture (submit, turn), one at once, under turn some amid their
        turns. Raises ValueError where nothing was discarded: no loss was checked then."""
        draw = random.Random(case.name)
        batches = [self._adversarial(g, draw, config) for g in groups]
        learner = self._play(Stream, config, batches)
        if case.release in ("submit", "turn") and not learner.discarded:
            raise ValueError(f"{case.name}: no lost trajectory's capture to discard: not checked")
        if case.release == "turn":
            self._check_turns(case, learner)
        return learner

    def _check_turns(self, case: Case, learner: InlineLearner) -> None:
        """Raises ValueError where the case was not what its name says."""
        turns = [stats.turns for stats in learner.stats if stats.turns and stats.turns.trajectories]
        if len(turns) < len(learner.stats) or not learner.abandoned:
            raise ValueError(f"{case.name}: no turn was begun, or none abandoned: not checked")
        if case.way == "retain":
            self._most_bytes[case.context] = turns[0].live_bytes_peak
        fallbacks = sum(t.fallbacks for t in turns)
        if (fallbacks > 0) != (case.way in ("whole", "bounded")):
            raise ValueError(f"{case.name}: {fallbacks} fallbacks: not what was to be checked")

    def _adversarial(
        self, groups: list[Group], draw: random.Random, config: Config
    ) -> RecordedBatch:
        trained = opd.make(config.objective, self._shape.size).enters
        entering = [t for g in groups for t in g.trajectories if t.action_tokens and trained(t)]
        lost = draw.sample(entering, min(2, len(entering)))
        distances = draw.randint(1, 6), 0
        return RecordedBatch(
            groups,
            arrival(groups, draw.randrange(1000)),
            burst=draw.randint(1, 4),
            reward_delay=draw.randint(1, min(5, self._shape.groups * self._shape.size // 3)),
            retried={t.trajectory_id: d for t, d in zip(lost, distances, strict=False)},
            turns=config.schedule.release == "turn",
            broken=[t.trajectory_id for t in entering if len(t.turns) > 1 and t not in lost][:3],
        )

    def reference(self, case: Case) -> tuple[torch.Tensor, float | None]:
        """The synchronous update and, in float32, its control."""
        key, groups = (*case.objective, case.context), self._groups[case.context]
        if key not in self._references:
            config = self._config(replace(case, release="batch"))
            (update,) = self._synchronous(config, [groups]).directions
            control = None
            if self._dtype == "float32":
                control = 0.0
                for seed in range(self._permutations):
                    (permuted,) = self._synchronous(config, [groups], seed).directions
                    control = max(control, relative_error(permuted, update))
            self._references[key] = update, control
        return self._references[key]

    def _moved(self, updates: Callable[[], InlineLearner]) -> torch.Tensor:
        """How far a few updates move the weights (flat, float64); they are undone."""
        start = [p.detach().clone() for p in self._trainable]
        updates()
        with torch.no_grad():
            pairs = list(zip(self._trainable, start, strict=True))
            moved = torch.cat([(p.double() - s.double()).flatten() for p, s in pairs])
            for parameter, weight in pairs:
                parameter.copy_(weight)
        return moved

    def gap(self, case: Case) -> tuple[float, float]:
        """(parameter gap after GAP_UPDATES updates, its control)."""
        config = self._config(case, Config().schedule.learning_rate)
        groups = [self._recorded(seed) for seed in range(1, GAP_UPDATES + 1)]
        if self._gap_reference is None:
            reference = self._moved(lambda: self._synchronous(config, groups))
            control = 0.0
            for seed in range(self._permutations):
                permuted = self._moved(partial(self._synchronous, config, groups, seed))
                control = max(control, relative_error(permuted, reference))
            self._gap_reference = reference, control
        reference, control = self._gap_reference
        return relative_error(
            self._moved(lambda: self._streamed(case, config, groups)), reference
        ), control

    def row(self, case: Case) -> dict[str, Any]:
        """One case: the streamed error, the control, and whether it holds. The paper's objective
        with form auto also has the parameter gap."""
        reference, control = self.reference(case)
        if case.way == "bounded" and case.context not in self._most_bytes:
            self.row(replace(case, way="retain"))
        groups = self._groups[case.context]
        (update,) = self._streamed(case, self._config(case), [groups]).directions
        error = relative_error(update, reference)
        limit = FLOAT64_LIMIT if control is None else GRADIENT_FACTOR * control
        ok = error <= limit and control != 0.0
        gap = control_gap = None
        way = "retain" if case.release == "turn" else ""
        if control is not None and case == Case(release=case.release, way=way):
            gap, control_gap = self.gap(case)
            ok = ok and control_gap > 0.0 and gap <= GAP_FACTOR * control_gap
        return {
            "objective": self._objective.name, "estimator": case.estimator,
            "aggregation": case.aggregation, "release": case.release, "form": case.form,
            "way": case.way, "context": case.context, "dtype": self._dtype,
            "gradient_relative_error": error, "control_relative_error": control,
            "parameter_gap": gap, "control_parameter_gap": control_gap, "ok": ok,
        }  # fmt: skip
