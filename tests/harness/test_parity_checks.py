"""The parity check of a run: when it is due, what it costs the budget, and that it can fail."""

from __future__ import annotations

import asyncio
import math
import random
from pathlib import Path

import pytest
import torch

from harness.budget import Budget
from harness.config import BudgetConfig, Config, ParityConfig
from harness.learner.torch_learner import TorchLearner
from harness.objectives import opd
from harness.objectives.grpo import Grpo
from harness.packing import pack
from harness.parity import ParityChecks, holds, pack_permuted
from harness.parts import learner_options
from harness.policy.load import resolve
from harness.protocols import Group, ParityFigures, Trajectory
from harness.sequences import spans
from thundersync.recorded import InlineLearner, RecordedBatch
from thundersync.synthetic import synthetic_groups


def make_learner(folder: Path, learning_rate: float = 3e-4) -> TorchLearner:
    config = Config()
    config.schedule.learning_rate = learning_rate
    return TorchLearner(**learner_options(config, resolve("tiny"), folder))


class Clock:
    """Time that a test sets."""

    kind = "wall"
    time_s = 0.0

    def now(self) -> float:
        return self.time_s


def test_a_pause_is_in_no_window_and_not_in_the_budget():
    clock = Clock()
    budget = Budget(BudgetConfig("wall_clock_s", 10.0), 2, clock)  # pyright: ignore
    clock.time_s = 1.0
    budget.start()
    clock.time_s = 4.0
    with budget.paused():
        clock.time_s = 9.0
    clock.time_s = 11.0
    assert budget.elapsed_s == 5.0
    assert budget.remaining_s == 5.0
    assert budget.training == [(1.0, 4.0), (9.0, 11.0)]
    assert budget.between_s(3.0, 10.0) == 2.0
    assert budget.windows(4.5, 8.0) == []
    assert budget.windows(9.5, 10.0) == [(9.5, 10.0)]


def rows(count: int) -> list[Trajectory]:
    draw = random.Random(0)
    return [
        Trajectory(f"t{i}", "t", "easy", 0, i, i, tokens_T=[1] * draw.randint(5, 120))
        for i in range(count)
    ]


def test_permuted_packing_keeps_every_row_once_and_the_bound():
    trajectories = rows(40)
    seen = set()
    for seed in range(5):
        chunks = pack_permuted(trajectories, 256, seed)
        assert sorted(t.trajectory_id for c in chunks for t in c) == sorted(
            t.trajectory_id for t in trajectories
        )
        for chunk in chunks:
            longest = max(len(t.tokens_T) for t in chunk)
            assert len(chunk) == 1 or longest * len(chunk) <= 256
        seen.add(tuple(t.trajectory_id for c in chunks for t in c))
    assert len(seen) == 5
    assert pack_permuted([], 256, 0) == []


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        ((3e-7, 1e-7, 5e-5, 1e-5), True),
        ((3.1e-7, 1e-7, 1e-5, 1e-5), False),
        ((1e-7, 1e-7, 5.1e-5, 1e-5), False),
        ((0.0, 0.0, 0.0, 0.0), False),
        ((None, None, None, None), None),
    ],
)
def test_the_limits_are_those_of_the_mathematics(figures, verdict):
    assert holds(ParityFigures(*figures)) is verdict


def test_a_check_is_due_every_so_many_updates():
    checks = ParityChecks(ParityConfig(every=3), None, None)  # pyright: ignore
    assert [checks.due() for _ in range(4)] == [False, False, True, True]  # 4: still unchecked
    never = ParityChecks(ParityConfig(), None, None)  # pyright: ignore
    assert not any(never.due() for _ in range(5))
    assert never.summary() is None


def run_check(learner: TorchLearner, batch: RecordedBatch, permutations: int = 2) -> ParityChecks:
    config = Config()
    objective = Grpo(config.objective, 6)
    checks = ParityChecks(ParityConfig(1, permutations), InlineLearner(learner), objective)
    learnt = [t for g in batch.groups for t, a in objective.coefficients(g).values() if a != 0.0]
    normaliser = objective.normaliser(batch.groups)
    asyncio.run(checks.check(batch, normaliser, pack(learnt, 512), 512))  # pyright: ignore
    return checks


def judged(groups: list[Group]) -> RecordedBatch:
    batch = RecordedBatch(groups, [t for g in groups for t in g.trajectories], burst=99)
    asyncio.run(_drain(batch))
    return batch


async def _drain(batch: RecordedBatch) -> None:
    while await batch.next() is not None:
        pass


def accumulated(learner: TorchLearner, batch: RecordedBatch) -> None:
    """The batch's update, one trajectory per backward."""
    objective = Grpo(Config().objective, 6)
    inline = InlineLearner(learner)
    for group in batch.groups:
        for trajectory, advantage in objective.coefficients(group).values():
            asyncio.run(inline.accumulate([trajectory], [advantage]))


def test_the_learner_is_the_same_after_a_check_as_before(tmp_path):
    """Weights, optimizer state, total and busy intervals: a checked run ends with the same bits."""
    ends = []
    for checked in (False, True):
        learner = make_learner(tmp_path)
        for seed in (1, 2):
            batch = judged(synthetic_groups(seed, learner.vocabulary, (0.0, 1.0), 2))
            accumulated(learner, batch)
            if checked:
                before = len(learner._intervals)
                checks = run_check(learner, batch)
                assert len(learner._intervals) == before
                assert checks.summary()["ok"] is True  # pyright: ignore
            learner.step(100.0)
        ends.append([p.detach().clone() for p in learner.parameters])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_wrong_update_does_not_pass(tmp_path):
    learner = make_learner(tmp_path)
    batch = judged(synthetic_groups(1, learner.vocabulary, (0.0, 1.0), 2))
    accumulated(learner, batch)
    wrong = batch.groups[1].trajectories[1]
    asyncio.run(InlineLearner(learner).accumulate([wrong], [1e-3]))  # a contribution too many
    summary = run_check(learner, batch).summary()
    assert summary is not None
    assert summary["ok"] is False
    assert summary["gradient_relative_error_max"] > 10 * summary["control_relative_error_max"]


def test_a_check_leaves_nothing_behind(tmp_path):
    """A bench holds gradients and weights as large as the model."""
    learner = make_learner(tmp_path)
    batch = judged(synthetic_groups(1, learner.vocabulary, (0.0, 1.0), 2))
    accumulated(learner, batch)
    run_check(learner, batch)
    assert learner._bench is None


class Heard:
    """A learner that writes down which rows each update of a check is made of."""

    def __init__(self) -> None:
        self.updates: list[list[Trajectory]] = [[]]

    async def parity_begin(self, normaliser: float) -> None:
        assert normaliser > 0

    async def accumulate(self, rows: list[Trajectory], coefficients: list[float]) -> None:
        assert len(rows) == len(coefficients)
        self.updates[-1] += rows

    async def parity_add(self) -> None:
        self.updates.append([])

    async def parity_end(self) -> ParityFigures:
        return ParityFigures(0.0, 1.0, 0.0, 1.0)


@pytest.mark.parametrize("discount", [0.0, 0.5])
def test_a_control_permutes_sequences_where_a_token_weighs_the_same_in_each(discount):
    """A trajectory of several fills a pass by itself. Under a discount it is one row."""
    groups = synthetic_groups(1, 128, (0.0, 1.0), 2, rewritten=True)
    batch, learner, config = judged(groups), Heard(), Config()
    config.objective.name, config.objective.discount = "opd", discount
    objective = opd.make(config.objective, 6)
    checks = ParityChecks(ParityConfig(1, 3), learner, objective)  # pyright: ignore
    learnt = [t for g in batch.groups for t in g.trajectories]
    asyncio.run(checks.check(batch, 9.0, pack(learnt, 64), 64))  # pyright: ignore
    reference, *controls = learner.updates[:-1]
    assert reference != learnt and sorted(map(id, reference)) == sorted(map(id, learnt))
    sequences = [
        (t.trajectory_id, t.tokens_T[a:b], t.action_tokens) for t in learnt for a, b in spans(t)
    ]
    assert len(sequences) > len(learnt)
    assert len(controls) == 3
    for rows in controls:
        if discount:
            assert sorted(map(id, rows)) == sorted(map(id, learnt))
        else:
            parts = [(t.trajectory_id, t.tokens_T, t.part_of or t.action_tokens) for t in rows]
            assert sorted(parts) == sorted(sequences)
            assert not any(t.rewritten_at for t in rows)


def test_two_rows_have_no_control(tmp_path):
    """One sum in whatever order: such an update checks nothing, and does not fail either."""
    learner = make_learner(tmp_path)
    (_, group) = synthetic_groups(1, learner.vocabulary, (0.0, 1.0), 2, size=2)
    batch = judged([group])
    accumulated(learner, batch)
    summary = run_check(learner, batch).summary()
    assert summary is not None
    assert (summary["checked"], summary["ok"]) == (0, None)


def test_an_update_without_a_gradient_checks_nothing_and_stays_due(tmp_path):
    learner = make_learner(tmp_path)
    batch = judged(synthetic_groups(1, learner.vocabulary, (0.0,), 2))
    checks = run_check(learner, batch)
    assert checks.summary() == {
        "checked": 0, "held": 0, "ok": None, "permutations": 2,
        "gradient_relative_error_max": None,
        "control_relative_error_max": None, "parameter_gap": None, "control_parameter_gap": None,
    }  # fmt: skip
    assert checks.due()
    assert math.isfinite(learner.step(1.0).gradient_norm)
