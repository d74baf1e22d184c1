"""On-policy distillation: sync and stream give the update of a literal loss, in float64.

The reference differentiates one trajectory at a time with autograd; nothing of the harness's
objective is used in it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch

from baselines.sync import Sync
from harness.config import Config, ObjectiveConfig
from harness.learner.distillation import Distillation
from harness.objectives.exactness import TABLE
from harness.objectives.opd import Opd, make, reverse_kl
from harness.objectives.rows import Row
from harness.protocols import Group, TeacherScores, Trajectory, UsageError
from harness.validation import validate
from tests.harness.objectives.literal import SETTINGS, SIZE, chosen, log_distribution
from thundersync.check import relative_error
from thundersync.recorded import RecordedBatch, play
from thundersync.stream import Stream
from thundersync.synthetic import arrival

GROUPS, VOCABULARY, TOP = 4, 48, 6
EPSILON = 1e-6
DISTILLED = SETTINGS | {"objective.name": "opd"}
WAYS: dict[str, dict[str, Any]] = {
    "sampled": {},
    "top_k": {"objective.top_k": TOP},
    "vocabulary": {"objective.top_k": VOCABULARY},
    "discount": {"objective.discount": 0.9},
    "undiscounted_future": {"objective.discount": 1.0},
    "with_the_task": {"objective.task_weight": 0.3},
    "top_k_with_the_task": {"objective.task_weight": 2.0, "objective.top_k": TOP},
    "task_leave_one_out_std": {
        "objective.task_weight": 0.5, "objective.estimator": "leave_one_out_std",
    },
    "sequence_means": {"objective.aggregation": "seq_mean_token_mean"},
    "weighted": {"objective.importance.kind": "truncate", "objective.importance.high": 1.2},
    "weighted_with_the_task": {
        "objective.importance.kind": "mask", "objective.importance.low": 0.7,
        "objective.importance.high": 1.4, "objective.task_weight": 0.5,
        "objective.discount": 0.5,
    },
    "kl_to_the_start": {"objective.kl.coefficient": 0.1},
    "entropy": {"objective.entropy.coefficient": 0.1, "objective.task_weight": 0.5},
    "without_overlong": {
        "objective.overlong.mask": True, "objective.overlong.in_normaliser": False,
    },
}  # fmt: skip
Configure = Callable[[Mapping[str, Any]], Config]


# -- the literal loss ------------------------------------------------------------------------------


def reverse_kl_at(
    logprobs_V: torch.Tensor, tokens: list[int], teacher: list[float]
) -> torch.Tensor:
    """KL(policy || teacher) over the teacher's tokens and, unless they are all, one rest."""
    others = [v for v in range(len(logprobs_V)) if v not in tokens]
    p = [logprobs_V[v].exp() for v in tokens]
    q = torch.tensor(teacher, dtype=torch.float64).exp().tolist()
    if others:
        p.append(logprobs_V[others].exp().sum())
        q.append(max(1.0 - sum(q), 1e-6))
    return torch.stack([a * (a / b).log() for a, b in zip(p, q, strict=True)]).sum()


def distilled(o: ObjectiveConfig, distribution: torch.Tensor, t: Trajectory) -> torch.Tensor:
    """Per-token objective."""
    assert t.teacher is not None
    if o.top_k:
        pairs = zip(distribution, t.teacher.top_tokens_NK, t.teacher.top_logprobs_NK, strict=True)
        return torch.stack([-reverse_kl_at(*pair) for pair in pairs])
    logprobs = chosen(distribution, t)
    own = [q - float(p) for p, q in zip(logprobs.detach(), t.teacher.logprobs_N, strict=True)]
    returns = [
        sum(o.discount ** (s - n) * own[s] for s in range(n, len(own)) if s == n or o.discount)
        for n in range(len(own))
    ]
    return torch.tensor(returns, dtype=torch.float64) * logprobs


def weights(o: ObjectiveConfig, logprobs: torch.Tensor, t: Trajectory) -> torch.Tensor:
    if o.importance.kind == "none":
        return torch.ones_like(logprobs)
    pairs = zip(t.behaviour_logprobs_T, t.action_mask_T, strict=True)
    engine = torch.tensor([b for b, m in pairs if m], dtype=torch.float64)
    ratios = (logprobs.detach() - engine).exp()
    if o.importance.kind == "truncate":
        return ratios.clamp(max=o.importance.high)
    low, high = o.importance.low, o.importance.high
    assert low is not None
    assert high is not None
    inside = (ratios >= low) & (ratios <= high)
    return torch.where(inside, ratios, 0.0)


def advantages(o: ObjectiveConfig, rewards: Sequence[float]) -> list[float]:
    if len(set(rewards)) == 1:
        return [0.0] * len(rewards)
    found = []
    for i, r in enumerate(rewards):
        others = [*rewards[:i], *rewards[i + 1 :]]
        if o.estimator == "leave_one_out_std":
            spread = pstdev(rewards) if len(set(others)) == 1 else pstdev(others)
            found.append((r - fmean(others)) / (spread + EPSILON))
        else:
            found.append((r - fmean(rewards)) / (pstdev(rewards) + EPSILON))
    return found


def literal_update(config: Config, groups: Sequence[Group], policy: Any, reference: Any):
    """The ascent direction of the whole batch's objective, flat."""
    o, temperature = config.objective, config.rollout.temperature
    total = torch.zeros((), dtype=torch.float64)
    tokens = sequences = 0
    for group in groups:
        rewards = [float(t.reward or 0.0) for t in group.trajectories]
        for t, a in zip(group.trajectories, advantages(o, rewards), strict=True):
            masked = o.overlong.mask and t.end != "submit"
            if not masked or o.overlong.in_normaliser:
                tokens += sum(t.action_mask_T)
                sequences += 1
            if masked or not any(t.action_mask_T):
                continue
            distribution = log_distribution(policy, t, temperature)
            logprobs = chosen(distribution, t)
            values = distilled(o, distribution, t) + o.task_weight * a * logprobs
            values = values * weights(o, logprobs, t)
            if o.kl.coefficient:
                start = chosen(log_distribution(reference, t, temperature), t).detach()
                values = values - o.kl.coefficient * (logprobs - start) ** 2 / 2
            if o.entropy.coefficient:
                entropy = torch.distributions.Categorical(logits=distribution).entropy()
                values = values + o.entropy.coefficient * entropy
            mean = o.aggregation == "seq_mean_token_mean"
            total = total + (values.mean() if mean else values.sum())
    objective = total / (tokens if o.aggregation == "token_mean" else sequences)
    gradients = torch.autograd.grad(objective, list(policy.parameters()))
    return torch.cat([g.flatten() for g in gradients])


# -- the schedules ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def make_groups(policy: Any) -> Callable[[int], list[Group]]:
    """Groups of random tokens whose teacher's log-probabilities are a distribution of their own;
    group 0 has equal rewards, one trajectory has no action token."""

    def make(top_k: int) -> list[Group]:
        draw = random.Random(3)
        noise = torch.Generator().manual_seed(5)
        made = []
        for g in range(GROUPS):
            group = Group(g, f"task-{g}", "easy")
            for i in range(SIZE):
                length = draw.randint(8, 40)
                mask = [0] + [int(draw.random() < 0.4) for _ in range(length - 2)] + [1]
                t = Trajectory(
                    f"{g}-{i}", group.task_id, "easy", g, i, seed=i,
                    tokens_T=[draw.randrange(VOCABULARY) for _ in range(length)],
                    action_mask_T=[0] * length if (g, i) == (2, 0) else mask,
                    reward=1.0 if g == 0 else (0.0, 1.0, 0.25, 1.0, 0.7)[(i + g) % SIZE],
                    end="turn_limit" if i == 1 else "submit",
                )  # fmt: skip
                with torch.no_grad():
                    own = log_distribution(policy, t, 0.8)
                shift = torch.randn(own.shape, generator=noise, dtype=own.dtype)
                teacher = (own + 0.7 * shift).log_softmax(-1)
                ours = iter((chosen(own, t) + 0.2 * chosen(shift, t)).tolist())
                t.behaviour_logprobs_T = [next(ours) if m else 0.0 for m in t.action_mask_T]
                t.teacher = TeacherScores(chosen(teacher, t).tolist())
                if top_k:
                    top = teacher.topk(top_k, -1)
                    t.teacher.top_tokens_NK = top.indices.tolist()
                    t.teacher.top_logprobs_NK = top.values.tolist()
                group.trajectories.append(t)
            made.append(group)
        return made

    return make


@pytest.mark.parametrize("way", WAYS)
def test_sync_and_stream_give_the_update_of_the_literal_loss(
    way: str, configure: Configure, make_groups, service, policy, reference
):
    """Rewards arrive late and two trajectories are lost after their last token, one of them when
    submit has captured it."""
    config = configure(DISTILLED | WAYS[way])
    groups = make_groups(config.objective.top_k)
    expected = literal_update(config, groups, policy, reference)
    learner = service(config)
    batch = RecordedBatch(groups, arrival(groups, 0), burst=3)
    sync = play(Sync(config), learner, config, [batch]).directions[0]
    assert relative_error(sync, expected) <= 1e-12
    for release in ("reward", "submit"):
        config.schedule.release = release
        batch = RecordedBatch(
            groups, arrival(groups, 7), burst=2, reward_delay=4, retried={"1-0": 0, "2-4": 3}
        )
        streamed = play(Stream(config), learner, config, [batch])
        assert streamed.stats[0].ledger_buffers_peak > 0
        assert ("2-4-lost" in streamed.discarded) == (release == "submit")
        assert relative_error(streamed.directions[0], sync) <= 1e-12


@pytest.mark.parametrize("way", [way for way in WAYS if way != "sampled"])
def test_every_way_is_another_update(
    way: str, configure: Configure, make_groups, policy, reference
):
    config, plain = configure(DISTILLED | WAYS[way]), configure(DISTILLED)
    groups = make_groups(config.objective.top_k)
    changed = literal_update(config, groups, policy, reference)
    assert relative_error(changed, literal_update(plain, groups, policy, reference)) > 1e-3


@pytest.mark.parametrize("row", [r for r in TABLE if "objective.name" in r.extra], ids=str)
def test_every_option_of_the_table_is_one_of_the_ways(row: Row):
    keys = set(row.option)
    if row.verdict != "refused":
        assert any(keys <= set(way) for way in WAYS.values()) or 0 in row.option.values()


def test_the_kl_over_the_vocabulary_is_at_least_that_over_a_part_of_it():
    generator = torch.Generator().manual_seed(1)
    own = torch.randn(9, VOCABULARY, generator=generator, dtype=torch.float64).log_softmax(-1)
    teacher = torch.randn(9, VOCABULARY, generator=generator, dtype=torch.float64).log_softmax(-1)
    whole = (own.exp() * (own - teacher)).sum(-1)
    found = []
    for k in (1, 4, 16, VOCABULARY):
        top = teacher.topk(k, -1)
        scores = TeacherScores([0.0] * 9, top.indices.tolist(), top.values.tolist())
        row = _row(9, scores)
        found.append(-Distillation(ObjectiveConfig(name="opd", top_k=k))([row], own[:, 0], own))
    for fewer, more in itertools.pairwise(found):
        assert (fewer <= more + 1e-12).all()
    assert (found[0] >= 0).all()
    assert torch.allclose(found[-1], whole, atol=1e-12)


def _row(tokens: int, scores: TeacherScores | None) -> Any:
    from harness.learner.client import ScoredTokens

    mask = [0] + [1] * tokens
    return ScoredTokens("a", 0, 1.0, [1] * (tokens + 1), mask, [0.0] * (tokens + 1), scores)


@pytest.mark.parametrize("scores", [None, TeacherScores([-1.0])], ids=["none", "too_few"])
def test_what_was_not_scored_whole_is_never_a_zero_gradient(scores: TeacherScores | None):
    own = torch.zeros(2, 4).log_softmax(-1)
    given = 0 if scores is None else 1
    with pytest.raises(ValueError, match=f"a: the teacher scored {given} of 2 generated tokens"):
        Distillation(ObjectiveConfig(name="opd"))([_row(2, scores)], own[:, 0], own)


def test_no_reward_is_read_without_a_task_weight(configure: Configure, make_groups, service):
    config = configure(DISTILLED)
    groups = make_groups(0)
    updates = []
    for shift in (0.0, 3.5):
        moved = [
            replace(g, trajectories=[replace(t, reward=shift * t.index) for t in g.trajectories])
            for g in groups
        ]
        batch = RecordedBatch(moved, arrival(moved, 0), burst=3)
        updates.append(play(Sync(config), service(config), config, [batch]).directions[0])
    assert torch.equal(*updates)


def test_groups_may_have_one_trajectory_and_none_is_degenerate():
    alone = Opd(ObjectiveConfig(name="opd"), group_size=1)
    t = Trajectory("a", "t", "easy", 0, 0, 0, tokens_T=[1, 2], action_mask_T=[0, 1], reward=0.0)
    group = Group(0, "t", "easy", [t])
    assert not alone.degenerate(group)
    assert alone.coefficients(group) == {"a": (t, 1.0)}
    assert alone.normaliser([group]) == 1.0
    with pytest.raises(UsageError, match=r"rollout\.group_size=1"):
        make(ObjectiveConfig(name="opd", task_weight=0.1), 1)


def test_the_mean_reverse_kl_by_hand():
    t = Trajectory(
        "a", "t", "easy", 0, 0, 0, tokens_T=[1, 2, 3], action_mask_T=[0, 1, 1],
        behaviour_logprobs_T=[0.0, -1.0, -2.0], teacher=TeacherScores([-1.5, -4.0]),
    )  # fmt: skip
    assert reverse_kl([t, replace(t, teacher=None)]) == pytest.approx((0.5 + 2.0) / 2)
    assert reverse_kl([]) is None


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"objective.top_k": 4}, "objective=grpo does not read it"),
        ({"objective.discount": 0.5}, "objective=grpo does not read it"),
        ({"objective.task_weight": 1.0}, "objective=grpo does not read it"),
        ({"objective.name": "opd", "objective.clip.kind": "ppo"}, "objective.clip.kind=none"),
        (
            {"objective.name": "opd", "objective.dynamic_sampling": "filter"},
            "objective=opd compares no rewards",
        ),
        (
            {
                "objective.name": "opd", "objective.kl.place": "reward",
                "objective.kl.coefficient": 0.1, "objective.kl.estimator": "k1",
            },
            "objective=opd reads no reward",
        ),
        (
            {
                "objective.name": "opd", "objective.top_k": 4,
                "objective.importance.kind": "truncate", "objective.importance.high": 2.0,
            },
            "objective.importance.kind=truncate: weights sampled tokens",
        ),
        (
            {
                "objective.name": "opd", "objective.top_k": 4, "schedule.name": "one_step_off",
                "schedule.release": None, "schedule.correction": "tis",
            },
            "schedule.correction=tis: weights sampled tokens",
        ),
        ({"objective.name": "opd", "objective.discount": 1.5}, "at least 0 and at most 1"),
        ({"objective.name": "odp"}, "did you mean opd?"),
    ],
)  # fmt: skip
def test_what_contradicts_a_distillation_is_one_line(
    overrides: Mapping[str, Any], words: str, configure: Configure
):
    with pytest.raises(UsageError) as caught:
        validate(configure(overrides))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
