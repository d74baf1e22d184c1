"""Corrections of stale data: what they stand for, and that the learner's update on trajectories of
older weights is the gradient of the published losses.

The losses are written from the papers, one trajectory at a time: the proximal log-probabilities
come from a forward of their own without gradients, the ratio to them is clipped as PPO does, the
weight is proximal / behaviour. Nothing of the harness's objective is used in them.
"""

from __future__ import annotations

import copy
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch

from baselines.sync import Sync
from harness.composition import compose
from harness.config import Config, ImportanceConfig, ScheduleConfig
from harness.learner.client import scored
from harness.objectives import offpolicy
from harness.objectives.exactness import TABLE
from harness.objectives.ratios import COLUMNS, RatioSums, columns, merged
from harness.parts import learner_options
from harness.protocols import Group, Trajectory, UsageError, VersionSpan
from harness.validation import check_values, validate
from thundersync.check import relative_error
from thundersync.recorded import RecordedBatch, play
from thundersync.synthetic import arrival

Configure = Callable[[Mapping[str, Any]], Config]
TEMPERATURE, EPSILON = 0.8, 1e-6
CLIP = 0.2
OTHERS = {
    "schedule.name": "async",
    "rollout.temperature": TEMPERATURE,
    "rollout.group_size": 4,
    "schedule.learning_rate": 0.0,
    "learner.dtype": "float64",
    "ledger.dtype": "float64",
}

# -- the literal losses ----------------------------------------------------------------------------


def logprobs_of(model: Any, t: Trajectory) -> torch.Tensor:
    """Of the action tokens, at the sampling temperature."""
    logits = model(input_ids=torch.tensor([t.tokens_T])).logits[0, :-1] / TEMPERATURE
    chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(t.tokens_T[1:])[:, None])[:, 0]
    return chosen[torch.tensor(t.action_mask_T[1:], dtype=torch.bool)]


def behaviour_of(t: Trajectory) -> torch.Tensor:
    pairs = zip(t.behaviour_logprobs_T, t.action_mask_T, strict=True)
    return torch.tensor([b for b, m in pairs if m], dtype=torch.float64)


def ratio_of(proximal: torch.Tensor, t: Trajectory, level: str) -> torch.Tensor:
    ratio = torch.exp(proximal - behaviour_of(t))
    return ratio if level == "token" else torch.full_like(ratio, math.prod(ratio.tolist()))


def ppo(logprobs: torch.Tensor, proximal: torch.Tensor, advantage: float) -> torch.Tensor:
    """PPO's clipped surrogate of each token, against the proximal policy."""
    ratio = torch.exp(logprobs - proximal)
    return torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)


def tis(weight: torch.Tensor, low: float | None, high: float) -> torch.Tensor:
    return torch.minimum(weight, torch.tensor(high, dtype=torch.float64))


def icepop(weight: torch.Tensor, low: float | None, high: float) -> torch.Tensor:
    assert low is not None
    kept = [w if low <= w <= high else 0.0 for w in weight.tolist()]
    return torch.tensor(kept, dtype=torch.float64)


def decoupled_ppo(weight: torch.Tensor, low: float | None, high: float) -> torch.Tensor:
    kept = [0.0 if w > high else w for w in weight.tolist()]
    return torch.tensor(kept, dtype=torch.float64)


LOSSES = {"tis": tis, "icepop": icepop, "decoupled_ppo": decoupled_ppo}


def literal_update(
    policy: Any,
    groups: Sequence[Group],
    correction: str,
    level: str,
    low: float | None,
    high: float,
) -> torch.Tensor:
    """The ascent direction of the whole batch, flat; token mean, population deviation."""
    objective, tokens = torch.zeros((), dtype=torch.float64), 0
    for group in groups:
        rewards = [t.reward or 0.0 for t in group.trajectories]
        for t, reward in zip(group.trajectories, rewards, strict=True):
            advantage = (reward - fmean(rewards)) / (pstdev(rewards) + EPSILON)
            with torch.no_grad():
                proximal = logprobs_of(policy, t)
            values = ppo(logprobs_of(policy, t), proximal, advantage)
            if correction != "none":
                ratio = ratio_of(proximal, t, level)
                values = values * LOSSES[correction](ratio, low, high)
            objective = objective + values.sum()
            tokens += sum(t.action_mask_T)
    gradients = torch.autograd.grad(objective / tokens, list(policy.parameters()))
    return torch.cat([g.flatten() for g in gradients])


# -- stale trajectories ----------------------------------------------------------------------------


def aged(policy: Any, reference: Any, share: float) -> Any:
    """Weights on the way from the reference's to the policy's."""
    model = copy.deepcopy(reference)
    newest = dict(policy.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.lerp_(newest[name], share)
    return model


@pytest.fixture(scope="module")
def groups(policy: Any, reference: Any) -> list[Group]:
    """Sampled by two older versions: each trajectory was begun by one and ended by the other, which
    was swapped in between two tokens. The engine's arithmetic is not the learner's either."""
    older, newer = aged(policy, reference, 0.8), aged(policy, reference, 0.9)
    draw = random.Random(8)
    made = []
    for g in range(3):
        group = Group(g, f"task-{g}", "easy")
        for i in range(4):
            length = draw.randint(6, 18)
            mask = [0] + [int(draw.random() < 0.6) for _ in range(length - 2)] + [1]
            t = Trajectory(
                f"{g}-{i}", group.task_id, "easy", g, i, seed=i,
                tokens_T=[draw.randrange(48) for _ in range(length)],
                action_mask_T=mask, reward=float(i % 2) + 0.25 * g * (i == 3), end="submit",
            )  # fmt: skip
            with torch.no_grad():
                old, new = logprobs_of(older, t).tolist(), logprobs_of(newer, t).tolist()
            swap = len(old) // 2
            sampled = iter(old[:swap] + new[swap:])
            kernel = [draw.gauss(0.0, 0.1) + draw.choice([0.0] * 8 + [-2.0, 2.0]) for _ in mask]
            t.behaviour_logprobs_T = [
                next(sampled) + error if m else 0.0 for m, error in zip(mask, kernel, strict=True)
            ]
            t.version_spans = [VersionSpan(0, 0, swap), VersionSpan(1, swap, len(old))]
            group.trajectories.append(t)
        made.append(group)
    return made


SETTINGS = [
    ("tis", "token", None, None), ("tis", "token", None, 1.1),
    ("tis", "sequence", None, None), ("tis", "sequence", None, 1.1),
    ("icepop", "token", None, None), ("icepop", "token", 0.8, 1.3),
    ("icepop", "sequence", None, None), ("icepop", "sequence", 0.2, 2.5),
    ("decoupled_ppo", "token", None, None), ("decoupled_ppo", "token", None, 1.2),
    ("decoupled_ppo", "sequence", None, None), ("decoupled_ppo", "sequence", None, 1.5),
]  # fmt: skip
PUBLISHED = {"tis": (None, 2.0), "icepop": (0.5, 5.0), "decoupled_ppo": (None, 5.0)}


@pytest.mark.parametrize(("correction", "level", "low", "high"), SETTINGS)
def test_the_update_on_stale_data_is_that_of_the_literal_loss(
    configure: Configure, groups, service, policy, correction, level, low, high
):
    config = configure(
        OTHERS
        | {
            "schedule.correction": correction,
            "schedule.correction_level": level,
            "schedule.correction_low": low,
            "schedule.correction_high": high,
        }
    )
    published_low, published_high = PUBLISHED[correction]
    bounds = published_low if low is None else low, published_high if high is None else high
    expected = literal_update(policy, groups, correction, level, *bounds)
    batch = RecordedBatch(groups, arrival(groups, 0), burst=3)
    played = play(Sync(config), service(config), config, [batch])
    assert relative_error(played.directions[0], expected) <= 1e-12
    uncorrected = literal_update(policy, groups, "none", level, *bounds)
    assert relative_error(expected, uncorrected) > 1e-2
    ratios = played.stats[0].ratios
    assert ratios is not None
    assert 0 < ratios.outside < ratios.tokens  # the bounds were at work, and not everywhere
    statistics_by_hand(policy, groups, correction, level, *bounds, ratios)


def statistics_by_hand(policy, groups, correction, level, low, high, ratios: RatioSums) -> None:
    found, weights = [], []
    for t in (t for g in groups for t in g.trajectories):
        with torch.no_grad():
            ratio = ratio_of(logprobs_of(policy, t), t, level)
        found += ratio.tolist()
        weights += LOSSES[correction](ratio, low, high).tolist()
    outside = [not (low or 0.0) <= r <= high for r in found]
    effective = sum(weights) ** 2 / sum(w * w for w in weights)
    assert columns(ratios) == pytest.approx(
        {
            "ratio_mean": fmean(found),
            "ratio_max": max(found),
            "ratio_outside_fraction": fmean(outside),
            "effective_sample_fraction": effective / len(found),
        },
        rel=1e-12,
    )


@pytest.mark.parametrize("correction", [None, "none"])
def test_without_a_correction_the_engines_numbers_are_not_used(
    configure: Configure, groups, service, policy, correction
):
    config = configure(OTHERS | {"schedule.correction": correction})
    assert offpolicy.effective(config) is config.objective
    batch = RecordedBatch(groups, arrival(groups, 0), burst=3)
    played = play(Sync(config), service(config), config, [batch])
    expected = literal_update(policy, groups, "none", "token", None, 1.0)
    assert relative_error(played.directions[0], expected) <= 1e-12
    assert played.stats[0].ratios is None


def test_an_engine_number_that_is_none_refuses_the_update(configure: Configure, groups, service):
    """A mask must not hide it."""
    config = configure(OTHERS | {"schedule.correction": "icepop"})
    broken = copy.deepcopy(groups[0].trajectories[1])
    broken.behaviour_logprobs_T[-1] = math.nan
    with pytest.raises(ValueError, match=r"0-1: the gradient is not finite"):
        service(config).accumulate([scored(broken, behaviour=True)], [1.0])


# -- what a correction stands for ------------------------------------------------------------------


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        ("tis", ("truncate", None, 2.0)),
        ("icepop", ("mask", 0.5, 5.0)),
        ("decoupled_ppo", ("mask", None, 5.0)),
    ],
)
def test_the_published_defaults(configure: Configure, correction, expected, level):
    config = configure({"schedule.correction": correction, "schedule.correction_level": level})
    kind, low, high = expected
    effective = offpolicy.effective(config)
    assert effective.importance == ImportanceConfig(kind, level, low, high)
    assert config.objective.importance == ImportanceConfig()  # left as it was
    (row,) = [
        row
        for row in TABLE
        if "objective.importance.kind" in row.option and row.applies(Config(objective=effective))
    ]
    assert row.verdict == "exact"


def test_the_documents_keys_and_defaults_are_the_codes():
    document = (Path(__file__).parents[3] / "docs" / "asynchronous.md").read_text()
    mentioned = set(re.findall(r"`?schedule\.(\w+)", document))
    assert mentioned - {f.name for f in fields(ScheduleConfig)} == set()
    assert {"max_staleness", "partial_rollout", "queue", "stale_groups", "correction"} <= mentioned
    for name, correction in offpolicy.CORRECTIONS.items():
        (row,) = re.findall(rf"^\| `{name}`.*$", document, re.MULTILINE)
        low, high = (cell.strip() for cell in row.split("|")[3:5])
        assert (float(low) if low else None, float(high)) == (correction.low, correction.high)
    assert all(f"`{column}`" in document for column in COLUMNS)


def test_given_bounds_replace_the_published_ones():
    given = ScheduleConfig(correction="icepop", correction_low=0.9)
    assert offpolicy.importance(given) == ImportanceConfig("mask", "token", 0.9, 5.0)
    given = ScheduleConfig(correction="icepop", correction_high=3.0)
    assert offpolicy.importance(given) == ImportanceConfig("mask", "token", 0.5, 3.0)


def test_the_learner_is_given_the_correction_and_the_engines_numbers(
    configure: Configure, tmp_path
):
    from harness.learner.client import TorchLearnerClient

    config = configure({"schedule.correction": "tis"})
    options = learner_options(config, tmp_path, tmp_path)
    assert options["objective"].importance == ImportanceConfig("truncate", "token", None, 2.0)
    client = TorchLearnerClient(options, threads=1)
    t = Trajectory(
        "a", "t", "easy", 0, 0, 0,
        tokens_T=[1, 2], action_mask_T=[0, 1], behaviour_logprobs_T=[0.0, -1.0],
    )  # fmt: skip
    assert client._scored([t])[0].behaviour_logprobs_T == [0.0, -1.0]


# -- refusals --------------------------------------------------------------------------------------


def refused(configure: Configure, overrides: Mapping[str, Any]) -> str:
    config = configure({"schedule.name": "async"} | overrides)
    with pytest.raises(UsageError) as caught:
        check_values(config, "schedule.correction")
        offpolicy.check(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"correction": "tsi"}, "schedule.correction=tsi: not available; there is: null, none"),
        ({"correction": "tis", "correction_level": "turn"}, "there is: token, sequence"),
        (
            {"correction": "tis", "correction_low": 0.5},
            "schedule.correction_low=0.5: schedule.correction=tis does not read it; leave it "
            "unset, or take schedule.correction=icepop",
        ),
        ({"correction": "decoupled_ppo", "correction_low": 0.5}, "take schedule.correction=icepop"),
        (
            {"correction": "none", "correction_high": 2.0},
            "take schedule.correction=tis or icepop or decoupled_ppo",
        ),
        ({"correction_high": 2.0}, "schedule.correction=null does not read it"),
        ({"correction_level": "sequence"}, "schedule.correction_level=sequence: "),
        ({"correction": "tis", "correction_high": 0.5}, "it must be at least 1"),
        ({"correction": "icepop", "correction_low": 1.5}, "at most 1"),
        ({"correction": "icepop", "correction_low": 0.0}, "must be above 0"),
        (
            {"correction": "icepop", "correction_low": 1.0, "correction_high": 1.0},
            "schedule.correction_low=1.0: not below schedule.correction_high=1.0",
        ),
    ],
)
def test_a_setting_that_means_nothing_is_refused(configure: Configure, settings, words):
    assert words in refused(configure, {f"schedule.{k}": v for k, v in settings.items()})


def test_weights_from_two_places_are_refused(configure: Configure):
    both = {
        "schedule.correction": "tis",
        "objective.importance.kind": "mask",
        "objective.importance.high": 2.0,
    }
    said = refused(configure, both)
    assert "schedule.correction=tis" in said
    assert "objective.importance.kind=mask sets them too" in said
    offpolicy.check(configure(both | {"schedule.name": "async", "schedule.correction": "none"}))


@pytest.mark.parametrize("schedule", ["async", "one_step_off"])
def test_schedules_on_stale_data_take_every_correction(schedule: str):
    for correction in ("null", "none"):
        validate(compose([f"schedule={schedule}", f"schedule.correction={correction}"]))
    for correction in offpolicy.CORRECTIONS:
        settings = [f"schedule.correction={correction}", "schedule.correction_level=sequence"]
        validate(compose([f"schedule={schedule}", *settings]))
    with pytest.raises(UsageError, match=r"schedule\.correction_low=0\.5: .* does not read it"):
        validate(compose([f"schedule={schedule}", *settings, "schedule.correction_low=0.5"]))


@pytest.mark.parametrize("schedule", ["sync", "stream"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("correction", "none"),
        ("correction", "tis"),
        ("correction_level", "sequence"),
        ("correction_low", "0.5"),
        ("correction_high", "2.0"),
    ],
)
def test_schedules_on_fresh_data_take_no_correction(schedule: str, key: str, value: str):
    with pytest.raises(UsageError) as caught:
        validate(compose([f"schedule={schedule}", f"schedule.{key}={value}", "tracking=none"]))
    assert str(caught.value) == (
        f"schedule.{key}={value}: schedule={schedule} trains on fresh trajectories only; "
        "leave it unset"
    )


# -- figures ---------------------------------------------------------------------------------------


def test_figures_of_ranks_add_up_and_of_nothing_are_empty():
    first = RatioSums(4.0, 6.0, 4.0, 6.0, 1.0, 3.0)  # weights 2, 1, 1 and 0
    second = RatioSums(1.0, 9.0, 2.0, 4.0, 1.0, 9.0)
    assert merged([None, None]) is None
    assert merged([None, first]) == first
    assert merged([first, second]) == RatioSums(5.0, 15.0, 6.0, 10.0, 2.0, 9.0)
    assert columns(None) == dict.fromkeys(COLUMNS)
    assert columns(first) == {
        "ratio_mean": 1.5,
        "ratio_max": 3.0,
        "ratio_outside_fraction": 0.25,
        "effective_sample_fraction": 16 / 6 / 4,
    }
    masked = RatioSums(3.0, 30.0, 0.0, 0.0, 3.0, 12.0)
    assert columns(masked)["effective_sample_fraction"] == 0.0
