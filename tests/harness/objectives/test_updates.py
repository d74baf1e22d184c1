"""Every exact row of the table: sync and stream give the update of a literal loss.

The reference is written from the papers' losses, one trajectory at a time, with the ratio and its
clip where the learner has none; nothing of the harness's objective is used in it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, pstdev, stdev
from typing import Any

import pytest
import torch

from baselines.sync import Sync
from harness.config import ClipConfig, Config, ImportanceConfig, ObjectiveConfig
from harness.learner.torch_learner import TorchLearner
from harness.objectives.exactness import TABLE
from harness.objectives.rows import Row
from harness.parts import reward_penalty
from harness.protocols import Group, Trajectory
from tests.harness.objectives.literal import SETTINGS, SIZE, chosen, log_distribution
from thundersync.check import relative_error
from thundersync.recorded import InlineLearner, RecordedBatch, play
from thundersync.stream import Stream
from thundersync.synthetic import arrival

GROUPS, VOCABULARY = 4, 48
EPSILON = 1e-6
# Rows of objective=opd are in test_opd.py.
EXACT = [r for r in TABLE if r.verdict != "refused" and "objective.name" not in r.extra]

Configure = Callable[[Mapping[str, Any]], Config]


# -- the literal loss ------------------------------------------------------------------------------


def weights(o: ImportanceConfig, logprobs: torch.Tensor, t: Trajectory) -> torch.Tensor:
    pairs = zip(t.behaviour_logprobs_T, t.action_mask_T, strict=True)
    engine = torch.tensor([b for b, m in pairs if m], dtype=torch.float64)
    ratios = []
    for difference in (logprobs.detach() - engine).tolist():
        ratios.append(difference)
    if o.level == "sequence":
        ratios = [sum(ratios)] * len(ratios)
    low = 0.0 if o.low is None else o.low
    high = 0.0 if o.high is None else o.high
    values = []
    for ratio in torch.tensor(ratios, dtype=torch.float64).exp().tolist():
        inside = low <= ratio <= high
        values.append(min(ratio, high) if o.kind == "truncate" else ratio if inside else 0.0)
    return torch.tensor(values, dtype=torch.float64)


def surrogate(clip: ClipConfig, logprobs: torch.Tensor, advantage: float) -> torch.Tensor:
    """Per-token objective of each clip, with the ratio to the detached log-probabilities."""
    old = logprobs.detach()
    if clip.kind == "none":
        return advantage * logprobs
    ratio = (logprobs - old).exp()
    if clip.kind == "cispo":
        assert clip.bound is not None
        return ratio.clamp(max=clip.bound).detach() * advantage * logprobs
    if clip.kind == "gspo":
        sequence = (logprobs - old).mean().exp()
        ratio = sequence.detach() * ratio if clip.form == "token" else sequence.expand_as(ratio)
    low, high = clip.low or 0.2, clip.high or clip.low or 0.2
    pessimistic = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    if clip.kind == "dual_clip" and advantage < 0:
        assert clip.dual is not None
        return torch.maximum(pessimistic, pessimistic.new_tensor(clip.dual * advantage))
    return pessimistic


def advantage(name: str, rewards: Sequence[float], i: int) -> float:
    if max(rewards) == min(rewards):
        return 0.0
    r, others = rewards[i], [*rewards[:i], *rewards[i + 1 :]]
    if name == "leave_one_out":
        return r - fmean(others)
    if name == "leave_one_out_std":
        spread = pstdev(rewards) if len(set(others)) == 1 else pstdev(others)
        return (r - fmean(others)) / (spread + EPSILON)
    scale = {"mean_std_population": pstdev, "mean_std_sample": stdev}.get(name)
    return (r - fmean(rewards)) / (scale(rewards) + EPSILON if scale else 1.0)


def aggregated(o: ObjectiveConfig, values: torch.Tensor) -> torch.Tensor:
    return values.mean() if o.aggregation == "seq_mean_token_mean" else values.sum()


def literal_update(
    config: Config, groups: Sequence[Group], policy: Any, reference: Any
) -> torch.Tensor:
    """The ascent direction of the whole batch's objective, flat."""
    o, temperature = config.objective, config.rollout.temperature

    def masked(t: Trajectory) -> bool:
        return o.overlong.mask and t.end != "submit"

    policy_term, always = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    tokens = sequences = 0
    centred: list[float] = []
    for group in groups:
        members = group.trajectories
        shaped: dict[str, float] = {}
        for t in members:
            penalty = 0.0
            if o.kl.place == "reward" and o.kl.coefficient:
                with torch.no_grad():
                    ours = chosen(log_distribution(policy, t, temperature), t)
                    theirs = chosen(log_distribution(reference, t, temperature), t)
                penalty = o.kl.coefficient * float((ours - theirs).sum())
            assert t.reward is not None
            shaped[t.trajectory_id] = t.reward - penalty
        counted = [t for t in members if o.overlong.in_group_mean or not masked(t)]
        rewards = [shaped[t.trajectory_id] for t in counted]
        found = {t.trajectory_id: advantage(o.estimator, rewards, i) for i, t in enumerate(counted)}
        trained = [t for t in members if not masked(t)]
        if o.dynamic_sampling == "filter" and not any(found[t.trajectory_id] for t in trained):
            continue
        centred += [r - fmean(rewards) for r in rewards]
        normalised = members if o.overlong.in_normaliser else trained
        sequences += len(normalised)
        tokens += sum(sum(t.action_mask_T) for t in normalised)
        for t in trained:
            if not any(t.action_mask_T):
                continue
            distribution = log_distribution(policy, t, temperature)
            logprobs = chosen(distribution, t)
            values = surrogate(o.clip, logprobs, found[t.trajectory_id])
            if o.importance.kind != "none":
                values = values * weights(o.importance, logprobs, t)
            policy_term = policy_term + aggregated(o, values)
            if o.kl.place == "loss" and o.kl.coefficient:
                theirs = chosen(log_distribution(reference, t, temperature), t).detach()
                k2 = (logprobs - theirs) ** 2 / 2
                k3 = (theirs - logprobs).exp() - 1 - (theirs - logprobs)
                kl = k2 if o.kl.estimator == "k2" else k3
                always = always - o.kl.coefficient * aggregated(o, kl)
            if o.entropy.coefficient:
                entropy = torch.distributions.Categorical(logits=distribution).entropy()
                always = always + o.entropy.coefficient * aggregated(o, entropy)
    if o.estimator == "batch_std":
        policy_term = policy_term / (pstdev(centred) + EPSILON)
    normaliser = {"token_mean": tokens, "constant": sequences * o.constant_tokens}
    objective = (policy_term + always) / normaliser.get(o.aggregation, sequences)
    gradients = torch.autograd.grad(objective, list(policy.parameters()))
    return torch.cat([g.flatten() for g in gradients])


# -- the schedules ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def groups(policy: Any) -> list[Group]:
    """Group 0 is degenerate; group 1 is so but for a trajectory that a limit ended; the others have
    three distinct rewards. The engine's log-probabilities lie around the policy's, some far."""
    draw = random.Random(3)
    ends = ["submit", "turn_limit", "submit", "token_limit", "submit"]
    made = []
    for g in range(GROUPS):
        group = Group(g, f"task-{g}", "easy")
        for i in range(SIZE):
            length = draw.randint(8, 40)
            mask = [0] + [int(draw.random() < 0.4) for _ in range(length - 2)] + [1]
            graded = (0.0, 1.0, 0.25, 1.0, 0.7)[(i + g) % SIZE]
            group.trajectories.append(
                Trajectory(
                    f"{g}-{i}", group.task_id, "easy", g, i, seed=i,
                    tokens_T=[draw.randrange(VOCABULARY) for _ in range(length)],
                    action_mask_T=[0] * length if (g, i) == (2, 0) else mask,
                    reward=(1.0, 1.0 if i != 1 else 0.0, graded, graded)[g],
                    end=ends[(i + g // 2) % SIZE],  # pyright: ignore[reportArgumentType]
                )
            )  # fmt: skip
        made.append(group)
    for t in (t for g in made for t in g.trajectories):
        with torch.no_grad():
            ours = iter(chosen(log_distribution(policy, t, 0.8), t).tolist())
        t.behaviour_logprobs_T = [
            next(ours) + draw.choice([0.0] * 30 + [-40.0, 40.0]) + draw.gauss(0.0, 0.3)
            if m
            else 0.0
            for m in t.action_mask_T
        ]
    return made


def with_penalties(config: Config, groups: Sequence[Group], learner: TorchLearner) -> list[Group]:
    """The groups as the rollout would have made them: rewards less the objective's penalty."""
    penalty = reward_penalty(config, InlineLearner(learner))  # pyright: ignore[reportArgumentType]
    if penalty is None:
        return list(groups)

    async def shaped(t: Trajectory) -> Trajectory:
        return replace(t, reward=(t.reward or 0.0) - await penalty(t))

    async def body() -> list[Group]:
        return [replace(g, trajectories=[await shaped(t) for t in g.trajectories]) for g in groups]

    return asyncio.run(body())


@pytest.mark.parametrize("row", EXACT, ids=str)
def test_sync_and_stream_give_the_update_of_the_literal_loss(
    row: Row, configure: Configure, groups, service, policy, reference
):
    """Rewards arrive late and two trajectories are lost after their last token, one of them when
    submit has captured it."""
    config = configure(SETTINGS | row.example)
    expected = literal_update(config, groups, policy, reference)
    learner = service(config)
    played = with_penalties(config, groups, learner)
    batch = RecordedBatch(played, arrival(played, 0), burst=3)
    sync = play(Sync(config), learner, config, [batch]).directions[0]
    assert relative_error(sync, expected) <= 1e-12
    for release in ("reward", "submit"):
        config.schedule.release = release
        batch = RecordedBatch(
            played, arrival(played, 7), burst=2, reward_delay=4, retried={"1-1": 0, "2-4": 3}
        )
        streamed = play(Stream(config), learner, config, [batch])
        assert streamed.stats[0].ledger_buffers_peak > 0
        assert ("2-4-lost" in streamed.discarded) == (release == "submit")
        assert relative_error(streamed.directions[0], sync) <= 1e-12


# What has a gradient of its own: left out of the learner, these tests must fail.
CHANGES = ("kl", "entropy", "importance", "overlong", "aggregation", "estimator", "dynamic")


def changing() -> list[Row]:
    default = Config()
    return [
        row
        for row in EXACT
        if any(f"objective.{name}" in next(iter(row.option)) for name in CHANGES)
        and not row.applies(default)
    ]


@pytest.mark.parametrize("row", changing(), ids=str)
def test_an_option_that_should_change_the_update_does(
    row: Row, configure: Configure, groups, policy, reference
):
    plain = literal_update(configure(SETTINGS), groups, policy, reference)
    changed = literal_update(configure(SETTINGS | row.example), groups, policy, reference)
    assert relative_error(changed, plain) > 1e-3


def test_the_two_forms_of_gspo_differ_under_per_token_weights(
    configure: Configure, groups, policy, reference
):
    token, sequence = [
        literal_update(configure(SETTINGS | row.example), groups, policy, reference)
        for row in EXACT
        if row.option.get("objective.clip.kind") == "gspo"
    ]
    assert relative_error(token, sequence) > 1e-3
