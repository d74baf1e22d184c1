"""Trajectories of several sequences, and those that a learner begins while they run."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.config import Config
from harness.learner.client import ScoredTokens, scored
from harness.learner.torch_learner import TorchLearner
from harness.parity import apart as as_rows
from harness.protocols import FoldSpec, TeacherScores, Trajectory
from harness.sequences import spans

OBJECTIVES: dict[str, dict[str, Any]] = {
    "token_mean": {},
    "seq_mean_token_mean": {"aggregation": "seq_mean_token_mean"},
    "entropy": {"entropy.coefficient": 0.1},
    "kl": {"kl.coefficient": 0.1},
    "truncate": {"importance.kind": "truncate", "importance.high": 1.1},
    "opd": {"name": "opd"},
    "top_k": {"name": "opd", "top_k": 4},
    "with_task": {"name": "opd", "task_weight": 0.5, "aggregation": "seq_mean_token_mean"},
}


def row(seed: int, cuts: bool = True, turns: int = 4) -> ScoredTokens:
    """Turns of 5 observed and 3 generated tokens; with `cuts` the second and the last begin a
    sequence of their own."""
    draw = random.Random(seed)
    tokens = [draw.randrange(129) for _ in range(8 * turns)]
    acted = 3 * turns
    tops = [draw.sample(range(129), 4) for _ in range(acted)]
    return ScoredTokens(
        f"0-{seed}", 0, None, tokens, ([0] * 5 + [1] * 3) * turns,
        [draw.uniform(-6.0, -4.0) for _ in tokens],
        TeacherScores(
            [draw.uniform(-6.0, -1.0) for _ in range(acted)], tops,
            [[-2.0 - n for n in range(4)] for _ in range(acted)],
        ),
        [8, 8 * (turns - 1)] if cuts else [],
    )  # fmt: skip


def so_far(whole: ScoredTokens, turns: int, scored: int | None = None) -> ScoredTokens:
    """Its first turns, of which a teacher has scored `scored` (all of them)."""
    end = 8 * turns
    teacher = whole.teacher and whole.teacher.cut(0, 3 * (turns if scored is None else scored))
    return replace(
        whole, tokens_T=whole.tokens_T[:end], action_mask_T=whole.action_mask_T[:end],
        behaviour_logprobs_T=(whole.behaviour_logprobs_T or [])[:end], teacher=teacher,
        rewritten_at=[at for at in whole.rewritten_at if at < end],
    )  # fmt: skip


@pytest.fixture
def learner(
    make_config: Callable[..., Config], one_rank: Callable[[Config], TorchLearner]
) -> Callable[..., TorchLearner]:
    """In float64, of an objective, for release=turn."""

    def make(name: str = "token_mean", way: str = "retain", limit: int = 1 << 40) -> TorchLearner:
        config = make_config(dtype="float64")
        config.schedule.release = "turn"
        config.segments.way, config.segments.max_live_bytes = way, limit
        for key, value in OBJECTIVES[name].items():
            inner, _, leaf = f"objective.{key}".rpartition(".")
            target: Any = config
            for part in inner.split("."):
                target = getattr(target, part)
            setattr(target, leaf, value)
        made = one_rank(config)
        if made.scorer.reference is not None:
            with torch.no_grad():
                for parameter in made.scorer.reference.parameters():
                    parameter.mul_(1.05)
        return made

    return make


def direction(made: TorchLearner, normaliser: float = 1.0) -> torch.Tensor:
    return torch.cat([t.flatten() for t in made.update_direction(normaliser)])


def error(found: torch.Tensor, true: torch.Tensor) -> float:
    return float(torch.linalg.norm(found - true) / torch.linalg.norm(true))


def apart(whole: ScoredTokens) -> list[ScoredTokens]:
    """Its sequences as trajectories of their own."""
    made, first = [], 0
    for n, (start, end) in enumerate(spans(whole)):
        acted = sum(whole.action_mask_T[start:end])
        made.append(
            ScoredTokens(
                f"{whole.trajectory_id}-{n}",
                0,
                None,
                whole.tokens_T[start:end],
                whole.action_mask_T[start:end],
                (whole.behaviour_logprobs_T or [])[start:end],
                whole.teacher and whole.teacher.cut(first, first + acted),
            )
        )
        first += acted
    return made


@pytest.mark.parametrize("name", ["token_mean", "entropy", "kl", "truncate", "opd", "top_k"])
def test_a_rewritten_trajectory_is_the_sum_of_its_sequences(name: str, learner):
    """Where a token's weight does not depend on how long its trajectory is."""
    whole, others = row(1), row(2, cuts=False)
    together, alone = learner(name), learner(name)
    together.accumulate([whole, others], [0.7, -0.4])
    for part in apart(whole):
        alone.accumulate([part], [0.7])
    alone.accumulate([others], [-0.4])
    assert error(direction(together), direction(alone)) <= 1e-12


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_control_s_rows_are_its_sequences(name: str, learner):
    """Each token weighs what it does in the whole, though that is by |o_i| of all sequences."""
    whole, others = row(1), row(2, cuts=False)
    made = Trajectory(
        whole.trajectory_id, "t", "easy", 0, 1, 1, tokens_T=whole.tokens_T,
        action_mask_T=whole.action_mask_T, behaviour_logprobs_T=whole.behaviour_logprobs_T or [],
        teacher=whole.teacher, rewritten_at=whole.rewritten_at,
    )  # fmt: skip
    rows = [scored(part, behaviour=True) for part in as_rows(made)]
    assert [len(r.tokens_T) for r in rows] == [8, 16, 8]
    together, alone = learner(name), learner(name)
    together.accumulate([whole, others], [0.7, -0.4])
    alone.accumulate([rows[2], others, rows[0]], [0.7, -0.4, 0.7])
    alone.accumulate([rows[1]], [0.7])
    assert error(direction(together), direction(alone)) <= 1e-12


def test_the_length_of_a_trajectory_is_that_of_all_its_sequences(learner):
    whole = row(1)
    together, alone = learner("seq_mean_token_mean"), learner("token_mean")
    together.accumulate([whole], [0.7])
    for part in apart(whole):
        alone.accumulate([part], [0.7 / sum(whole.action_mask_T)])
    assert error(direction(together), direction(alone)) <= 1e-12


@pytest.mark.parametrize("cuts", [False, True], ids=["shared", "rewritten"])
@pytest.mark.parametrize("way", ["retain", "sweep"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_begun_while_it_ran_it_has_the_same_gradient(name: str, way: str, cuts: bool, learner):
    """Accumulated with a coefficient, and captured and folded, beside one that was not begun."""
    whole, other = row(3, cuts), row(4)
    made, plain = learner(name, way), learner(name)
    for turns in (1, 2, 3):
        made.extend(so_far(whole, turns))
    made.accumulate([whole, other], [0.7, -0.4])
    plain.accumulate([whole, other], [0.7, -0.4])
    assert error(direction(made), direction(plain)) <= 1e-12
    assert made._turns._gradients.live_bytes == 0

    again, captured = learner(name, way), learner(name)
    for turns in (2, 3):
        again.extend(so_far(whole, turns))
    rewarded = [replace(r, reward=1.0) for r in (whole, other)]
    for service in (again, captured):
        service.capture(rewarded)
        service.fold(FoldSpec(0, {r.trajectory_id: (1.0, 0.5) for r in rewarded}))
        service.step(1.0)
    for mine, theirs in zip(again.parameters, captured.parameters, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_a_complete_sequence_needs_no_end(learner):
    """Its graph is gone and its gradient there while the trajectory still runs."""
    whole = row(5)
    rewritten, shared = learner(), learner()
    for turns in (1, 2):
        rewritten.extend(so_far(whole, turns))
        shared.extend(so_far(replace(whole, rewritten_at=[]), turns))
    held = [made._turns._running[whole.trajectory_id] for made in (rewritten, shared)]
    assert [sorted(h.done) for h in held] == [[0], []]
    assert held[0].made is not None
    for made in (rewritten, shared):
        made.abandon([whole.trajectory_id])
        assert made._turns._gradients.live_bytes == 0
        made.step(1.0)  # nothing is left under way


def test_what_the_teacher_has_not_scored_waits(learner):
    whole = row(6)
    made, plain = learner("opd"), learner("opd")
    made.extend(so_far(whole, 1))
    assert whole.teacher is not None
    for tokens in (0, 2):  # of the first sequence's 3
        made.extend(replace(so_far(whole, 2), teacher=whole.teacher.cut(0, tokens)))
        assert made._turns._running[whole.trajectory_id].done == set()
    made.extend(so_far(whole, 3, scored=1))
    assert made._turns._running[whole.trajectory_id].done == {0}
    made.accumulate([whole], [1.0])
    plain.accumulate([whole], [1.0])
    assert error(direction(made), direction(plain)) <= 1e-12


def test_a_trajectory_without_all_its_scores_is_an_error(learner):
    whole = row(6, cuts=False)
    assert whole.teacher is not None
    twice = TeacherScores(2 * whole.teacher.logprobs_N)
    for scores, said in ((whole.teacher.cut(0, 9), "9 of 12"), (twice, "24 of 12")):
        made = learner("opd")
        made.extend(so_far(whole, 2))
        with pytest.raises(ValueError, match=f"0-6: the teacher scored {said}"):
            made.accumulate([replace(whole, teacher=scores)], [1.0])


def test_a_gradient_that_is_not_finite_is_refused(learner):
    whole, made = row(6, cuts=False), learner("opd")
    assert whole.teacher is not None
    made.extend(so_far(whole, 2))
    poisoned = TeacherScores([math.nan, *whole.teacher.logprobs_N[1:]])
    with pytest.raises(ValueError, match="0-6: the gradient is not finite"):
        made.accumulate([replace(whole, teacher=poisoned)], [1.0])


def test_gradients_that_do_not_fit_wait_for_the_end(learner):
    """A trajectory's own buffers are under the bound as well; what falls back is counted."""
    whole = row(7)
    made, plain = learner(limit=200_000), learner()
    for turns in (1, 2, 3):
        made.extend(so_far(whole, turns))
    assert made._turns._running[whole.trajectory_id].made is None
    assert made._turns._gradients.live_bytes <= 200_000
    made.accumulate([whole], [1.0])
    plain.accumulate([whole], [1.0])
    assert error(direction(made), direction(plain)) <= 1e-12
    stats = made.step(1.0).turns
    assert stats.fallbacks > 0
    assert "exceed segments.max_live_bytes=200000" in stats.fallback
    assert stats.trajectories == 1
    assert stats.retained_tokens + stats.rerun_tokens == 7 + 15 + 7  # all but each sequence's last
    then = made.step(1.0).turns  # each is told once
    assert (then.fallbacks, then.trajectories) == (0, 0)
    assert (then.retained_tokens, then.rerun_tokens) == (0, 0)


def test_each_term_has_buffers_of_its_own_under_the_bound(learner):
    """Under an entropy a trajectory's gradient is two, of which one alone fits."""
    whole, one = row(7), sum(p.nbytes for p in learner().parameters)
    done = {}
    for name in ("token_mean", "entropy"):
        made = learner(name, "sweep", limit=int(1.9 * one))
        made.extend(so_far(whole, 2))
        done[name] = made._turns._running[whole.trajectory_id].done
    assert done == {"token_mean": {0}, "entropy": set()}


def test_a_step_over_begun_turns_is_an_error(learner):
    made = learner()
    made.extend(so_far(row(8), 1))
    with pytest.raises(RuntimeError, match="about to change under 0-8/0"):
        made.step(1.0)
    made._turns._gradients.end_of_update = lambda: None  # another class may not ask
    with pytest.raises(RuntimeError, match="turns of 0-8 were neither used nor given up"):
        made.step(1.0)


def test_a_coefficient_of_zero_is_given_up_by_the_schedule_not_in_silence(learner):
    made = learner()
    made.extend(so_far(row(9), 1))
    made.accumulate([row(9)], [0.0])
    with pytest.raises(RuntimeError, match="0-9"):
        made.step(1.0)


def test_a_learner_of_another_rung_takes_no_turns(one_rank, make_config):
    with pytest.raises(ValueError, match="not started for turns"):
        one_rank(make_config()).extend(so_far(row(1), 1))
