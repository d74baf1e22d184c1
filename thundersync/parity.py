"""Parity: is the streamed update the synchronous update?

    python -m thundersync.parity [objective=grpo] [dtype=float32|float64] [policy=tiny|FOLDER]

math.md section 6. For every estimator x aggregation x release x ledger form the same trajectories
at the same weights go through the synchronous and the streaming schedule, in an adversarial order
of arrival with late rewards and a lost trajectory. In float32 the error must stay within 3 x the
control, the largest error of 20 synchronous updates with permuted rows and chunks, which must
itself be above 0; in float64 (weights, gradients, ledger; norms that stay in float64) within 1e-12.
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import rms_norm

from harness import entry
from harness.cluster.worker import load
from harness.config import Config
from harness.learner.torch_learner import TorchLearner
from harness.objectives.estimators import AGGREGATIONS, ESTIMATORS
from harness.parts import learner_options
from harness.policy.load import resolve
from harness.protocols import Group, Schedule, Trajectory, UsageError
from thundersync.recorded import RecordedBatch, permuted_packing, play
from thundersync.stream import Stream

SYNC = "baselines.sync:Sync"
RELEASES = ("batch", "group", "reward", "submit")
FORMS = ("affine", "bucket", "auto")
PERMUTATIONS = 20
CONTROL_FACTOR = 3.0
FLOAT64_LIMIT = 1e-12


def relative_error(got: torch.Tensor, reference: torch.Tensor) -> float:
    """Relative gradient error. Raises ValueError where the reference is zero: that checks
    nothing."""
    norm = torch.linalg.norm(reference)
    if norm == 0:
        raise ValueError("the reference update is zero (all groups degenerate): nothing to compare")
    return float(torch.linalg.norm(got - reference) / norm)


class TrueNorm(nn.Module):
    """RMSNorm in its input's own dtype: the stock one passes through float32, which would limit a
    float64 check to 1e-7."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self._epsilon = epsilon

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, self.weight.shape, self.weight, self._epsilon)


def use_true_norms(model: nn.Module) -> None:
    """Replace every RMSNorm of a transformers model, sharing its weight."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                weight, epsilon = child.weight, child.variance_epsilon
                if not isinstance(weight, nn.Parameter) or not isinstance(epsilon, float):
                    raise TypeError(f"{type(child).__name__} is no RMSNorm that is known here")
                setattr(module, name, TrueNorm(weight, epsilon))


def synthetic_groups(
    seed: int, vocabulary: int, rewards: Sequence[float], groups: int = 4, size: int = 6
) -> list[Group]:
    """Trajectories of random tokens, masks and lengths; the first group is degenerate, the last has
    a trajectory without action tokens."""
    draw = random.Random(seed)
    made = []
    for g in range(groups):
        group = Group(g, f"task-{g}", "easy")
        for i in range(size):
            length = draw.randint(12, 90)
            mask = [0] + [int(draw.random() < 0.3) for _ in range(length - 2)] + [1]
            if (g, i) == (groups - 1, 0):
                mask = [0] * length
            group.trajectories.append(
                Trajectory(
                    f"{g}-{i}", group.task_id, "easy", g, i, seed=i,
                    tokens_T=[draw.randrange(vocabulary) for _ in range(length)],
                    action_mask_T=mask,
                    reward=rewards[0] if g == 0 else rewards[i % len(rewards)],
                )
            )  # fmt: skip
        made.append(group)
    return made


def arrival(groups: Sequence[Group], seed: int) -> list[Trajectory]:
    """A random order of arrival over all groups."""
    trajectories = [t for g in groups for t in g.trajectories]
    random.Random(seed).shuffle(trajectories)
    return trajectories


@dataclass(frozen=True)
class Case:
    estimator: str
    aggregation: str
    release: str
    form: str


def cases() -> Iterator[Case]:
    """Every combination that is not refused at start."""
    for case in itertools.starmap(
        Case, itertools.product(ESTIMATORS, AGGREGATIONS, RELEASES, FORMS)
    ):
        if case.form != "affine" or ESTIMATORS[case.estimator].affine:
            yield case


def make_config(case: Case, dtype: str) -> Config:
    """A learning rate of 0: every update is played at the same weights."""
    config = Config()
    config.objective.estimator, config.objective.aggregation = case.estimator, case.aggregation
    config.schedule.release, config.schedule.chunk_tokens = case.release, 256
    config.schedule.learning_rate = 0.0
    config.learner.dtype = config.ledger.dtype = dtype
    config.ledger.form = case.form
    config.rollout.group_size = 6
    return config


class Check:
    """Figures of one policy in one dtype; synchronous references and controls are computed once."""

    def __init__(self, policy: Path, dtype: str, folder: Path) -> None:
        self._policy, self._dtype, self._folder = policy, dtype, folder
        self._references: dict[tuple[str, str], tuple[torch.Tensor, float | None]] = {}
        vocabulary = self._learner(Case("mean", "token_mean", "batch", "auto")).vocabulary
        # Six distinct rewards a group: more than two buckets, and not evenly spaced.
        self._groups = synthetic_groups(1, vocabulary, (0.0, 1.0, 0.25, 1.0, 0.7, 0.0))

    def _learner(self, case: Case) -> TorchLearner:
        config = make_config(case, self._dtype)
        learner = TorchLearner(**learner_options(config, self._policy, self._folder))
        if self._dtype == "float64":
            use_true_norms(learner.model)
        return learner

    def _synchronous(self, config: Config) -> Schedule:
        return load(SYNC)(config)

    def reference(self, case: Case) -> tuple[torch.Tensor, float | None]:
        """The synchronous update and, in float32, its control."""
        key = (case.estimator, case.aggregation)
        if key not in self._references:
            config, learner = make_config(case, self._dtype), self._learner(case)
            batch = RecordedBatch(self._groups, arrival(self._groups, 0), burst=3)
            update = play(self._synchronous(config), learner, config, [batch]).directions[0]
            control = None
            if self._dtype == "float32":
                errors = []
                for seed in range(PERMUTATIONS):
                    batch = RecordedBatch(self._groups, arrival(self._groups, seed), burst=3)
                    permuted = play(
                        self._synchronous(config), learner, config, [batch], permuted_packing(seed)
                    )
                    errors.append(relative_error(permuted.directions[0], update))
                control = max(errors)
            self._references[key] = update, control
        return self._references[key]

    def row(self, case: Case) -> dict[str, Any]:
        """One case: the streamed error, the control, and whether it holds."""
        reference, control = self.reference(case)
        config = make_config(case, self._dtype)
        batch = RecordedBatch(
            self._groups, arrival(self._groups, 7), burst=2, reward_delay=5, retried={"1-1", "2-4"}
        )
        streamed = play(Stream(config), self._learner(case), config, [batch])
        error = relative_error(streamed.directions[0], reference)
        limit = FLOAT64_LIMIT if control is None else CONTROL_FACTOR * control
        return {
            "objective": "grpo", "estimator": case.estimator, "aggregation": case.aggregation,
            "release": case.release, "form": case.form, "dtype": self._dtype,
            "gradient_relative_error": error, "control_relative_error": control,
            "ok": error <= limit and control != 0.0,
        }  # fmt: skip


def check_from_command_line() -> None:
    """Print the table; raises ParityFailed after it where a case does not hold."""
    options = {"objective": "grpo", "dtype": "float32", "policy": "tiny"}
    for argument in sys.argv[1:]:
        key, _, value = argument.partition("=")
        if key not in options:
            raise UsageError(f"{argument}: no such key; there is {', '.join(options)}")
        options[key] = value
    if options["objective"] != "grpo":
        raise UsageError(f"objective={options['objective']}: not available; there is: grpo")
    if options["dtype"] not in ("float32", "float64"):
        raise UsageError(f"dtype={options['dtype']}: take float32 or float64")
    rows = []
    with tempfile.TemporaryDirectory(prefix="thundersync-") as folder:
        check = Check(resolve(options["policy"]), options["dtype"], Path(folder))
        for case in cases():
            row = check.row(case)
            rows.append(row)
            print(describe(row), file=sys.stderr, flush=True)
    ok = all(row["ok"] for row in rows)
    if sys.stdout.isatty():
        print(f"{sum(row['ok'] for row in rows)} of {len(rows)} cases hold")
    else:
        entry.closing_line({"rows": rows, "ok": ok})
    if not ok:
        raise SystemExit(1)


def describe(row: dict[str, Any]) -> str:
    """One row in 80 columns."""
    control = row["control_relative_error"]
    bound = f"control {control:.1e}" if control is not None else f"limit {FLOAT64_LIMIT:.0e}"
    return (
        f"{row['estimator']:<20}{row['aggregation']:<20}{row['release']:<7}{row['form']:<7}"
        f"{row['gradient_relative_error']:.1e} {bound} {'ok' if row['ok'] else 'FAILED'}"
    )


def main() -> int:
    return entry.guarded(check_from_command_line)


if __name__ == "__main__":
    sys.exit(main())
