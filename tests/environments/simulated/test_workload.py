"""Drawn lives: moments and correlations as asked for, limits as the agent loop's, no state."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from environments.protocols import UsageError
from environments.simulated import draws
from environments.simulated.workload import DrawnWorkload, Limits, Plan, make_workload
from environments.simulated.workload_config import (
    DifficultyConfig,
    LogNormalConfig,
    WorkloadConfig,
)

WIDE = Limits(max_turns=100_000, max_new_tokens=10**8, max_context_tokens=10**12)
PLAIN = WorkloadConfig(
    name="plain",
    prompt_tokens=LogNormalConfig(100.0, 0.3),
    turns=LogNormalConfig(20.0, 0.5, 0.4),
    action_tokens=LogNormalConfig(1000.0, 0.7),
    observation_tokens=LogNormalConfig(500.0, 0.9),
    tool_s=LogNormalConfig(2.0, 1.0),
    start_s=LogNormalConfig(8.0, 0.4, 0.3),
    verify_s=LogNormalConfig(30.0, 0.6, 0.9),
    difficulties={"easy": DifficultyConfig(3.0, 0.9), "hard": DifficultyConfig(1.0, 0.2)},
    reward_icc=0.3,
)


def lives(config: WorkloadConfig, groups: int, size: int = 8, limits: Limits = WIDE) -> list[Plan]:
    workload = DrawnWorkload(config, limits)
    return [workload.plan(7 * g, g, i, 0) for g in range(groups) for i in range(size)]


def correlation(values: list[float], size: int) -> float:
    """One-way ANOVA over groups of `size`."""
    table = np.array(values).reshape(-1, size)
    between = size * table.mean(axis=1).var(ddof=1)
    within = table.var(axis=1, ddof=1).mean()
    return float((between - within) / (between + (size - 1) * within))


def test_draws_have_the_moments_of_their_distributions() -> None:
    plans = lives(PLAIN, 1000)
    turns = [turn for plan in plans[::8] for turn in plan.turns]
    checks = [
        (math.log(2.0), 1.0, [math.log(turn.tool_s) for turn in turns if turn.tool_s]),
        (math.log(1000.0), 0.7, [math.log(turn.action_tokens) for turn in turns]),
        (math.log(8.0), 0.4, [math.log(plan.start_s) for plan in plans]),
        (math.log(30.0), 0.6, [math.log(plan.verify_s) for plan in plans]),
        (math.log(100.0), 0.3, [math.log(plan.prompt_tokens) for plan in plans[::8]]),
    ]
    for mean, deviation, values in checks:
        assert statistics.fmean(values) == pytest.approx(mean, abs=0.06)
        assert statistics.stdev(values) == pytest.approx(deviation, rel=0.06)
    counts = [len(plan.turns) for plan in plans]
    assert statistics.fmean(counts) == pytest.approx(20.0 * math.exp(0.5**2 / 2), rel=0.03)


@pytest.mark.parametrize("icc", [0.0, 0.3, 0.8, 1.0])
def test_groups_share_what_they_are_asked_to_share(icc: float) -> None:
    config = WorkloadConfig(
        name="x", turns=LogNormalConfig(1.0), start_s=LogNormalConfig(5.0, 0.5, icc)
    )
    values = [math.log(plan.start_s) for plan in lives(config, 1500)]
    assert correlation(values, 8) == pytest.approx(icc, abs=0.03)


@pytest.mark.parametrize("icc", [0.0, 0.3, 0.7, 1.0])
def test_rewards_of_a_group_are_correlated_and_their_mean_stays(icc: float) -> None:
    config = WorkloadConfig(
        name="x", turns=LogNormalConfig(1.0), reward_icc=icc,
        difficulties={"all": DifficultyConfig(1.0, 0.4)},
    )  # fmt: skip
    rewards = [plan.reward for plan in lives(config, 2500)]
    assert statistics.fmean(rewards) == pytest.approx(0.4, abs=0.03)
    assert correlation(rewards, 8) == pytest.approx(icc, abs=0.03)


def test_difficulties_have_their_shares_and_chances() -> None:
    plans = lives(PLAIN, 2000)
    counts = Counter(plan.difficulty for plan in plans)
    assert counts["easy"] / len(plans) == pytest.approx(0.75, abs=0.03)
    for name, chance in (("easy", 0.9), ("hard", 0.2)):
        rewards = [plan.reward for plan in plans if plan.difficulty == name]
        assert statistics.fmean(rewards) == pytest.approx(chance, abs=0.03)


def test_lives_that_fail_and_later_groups_can_be_longer() -> None:
    config = WorkloadConfig(name="x", turns=LogNormalConfig(1000.0), failed_turns_factor=3.0,
                            growth_per_group=0.01)  # fmt: skip
    workload = DrawnWorkload(config, WIDE)
    for group in (0, 100):
        by_reward = {plan.reward: len(plan.turns)
                     for plan in (workload.plan(1, group, i, 0) for i in range(64))}  # fmt: skip
        base = 1000 * math.exp(0.01 * group)
        assert by_reward[1.0] == round(base) and by_reward[0.0] == round(3 * base)


def constant(**changes: object) -> WorkloadConfig:
    """Every life: 10 tokens of prompt, 6 turns of 4 and 5, tools of 2 s, a success."""
    values = {
        "prompt_tokens": 10.0, "turns": 6.0, "action_tokens": 4.0, "observation_tokens": 5.0,
        "tool_s": 2.0, "start_s": 1.0, "verify_s": 3.0, **changes,
    }  # fmt: skip
    draws = {key: LogNormalConfig(float(str(value))) for key, value in values.items()}
    return WorkloadConfig(
        name="x", difficulties={"all": DifficultyConfig(1.0, 1.0)}, **draws
    )  # fmt: skip


def ended(limits: Limits, config: WorkloadConfig | None = None) -> Plan:
    return DrawnWorkload(config or constant(), limits).plan(1, 2, 3, 0)


def test_a_life_that_submits_is_verified_and_reads_nothing_after_its_last_action() -> None:
    plan = ended(Limits(6, 8, 1000))
    assert (plan.end, plan.reward, plan.verify_s, plan.start_s) == ("submit", 1.0, 3.0, 1.0)
    assert [tuple(turn) for turn in plan.turns] == [(4, 5, 2.0)] * 5 + [(4, 0, 0.0)]
    assert plan.tokens == 10 + 6 * 4 + 5 * 5


def test_limits_end_a_life_as_the_agent_loop_does() -> None:
    turns = ended(Limits(5, 8, 1000))
    assert (turns.end, len(turns.turns), turns.reward, turns.verify_s) == (
        "turn_limit",
        5,
        0.0,
        0.0,
    )
    assert tuple(turns.turns[-1]) == (4, 0, 2.0)  # its command ran; nobody read what it said
    # 10 read, then 19, 28, 37, ...; each turn needs room for 8 more: 45 is full before the fourth.
    context = ended(Limits(6, 8, 44))
    assert (context.end, len(context.turns), context.reward) == ("context_limit", 3, 0.0)
    assert ended(Limits(6, 8, 45)).end == "context_limit"
    assert len(ended(Limits(6, 8, 45)).turns) == 4
    tokens = ended(Limits(6, 4, 1000))
    assert (tokens.end, len(tokens.turns), tokens.verify_s) == ("token_limit", 1, 0.0)
    config = constant()
    config.long_actions = "cut"
    assert ended(Limits(6, 4, 1000), config).turns.action_tokens == 6 * 3  # type: ignore[attr-defined]


def test_a_retry_says_the_same_and_meets_another_machine() -> None:
    workload = DrawnWorkload(PLAIN, WIDE)
    first, again = workload.plan(3, 1, 2, 0), workload.plan(3, 1, 2, 1)
    tokens = [[turn[:2] for turn in plan.turns] for plan in (first, again)]
    assert tokens[0] == tokens[1] and (first.reward, first.end) == (again.reward, again.end)
    assert first.start_s != again.start_s and first.turns[0].tool_s != again.turns[0].tool_s


def test_what_a_place_draws_depends_on_nothing_else() -> None:
    forwards, backwards = DrawnWorkload(PLAIN, WIDE), DrawnWorkload(PLAIN, WIDE)
    places = [(7 * g, g, i, a) for g in range(40) for i in (0, 5, 9, 17) for a in (0, 1)]
    seen = {place: forwards.plan(*place) for place in places}
    assert seen == {place: backwards.plan(*place) for place in reversed(places)}
    assert len({plan.start_s for plan in seen.values()}) == len(places)


def test_another_process_draws_the_same() -> None:
    script = (
        "import json; from environments.simulated import draws; import numpy as np;"
        "keys = np.array([draws.key(1, 2, 3), draws.key(-1)], dtype=np.uint64);"
        "print(json.dumps(draws.normals(keys, 3).tolist()))"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    keys = np.array([draws.key(1, 2, 3), draws.key(-1)], dtype=np.uint64)
    assert json.loads(told.stdout) == draws.normals(keys, 3).tolist()


def test_a_place_keeps_its_numbers_from_version_to_version() -> None:
    """splitmix64's reference output for seed 0; a change would change every virtual run."""
    reference = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    drawn = draws.uniforms(np.array([0], dtype=np.uint64), 3)[0]
    assert drawn.tolist() == [((value >> 11) + 0.5) * 2.0**-53 for value in reference]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward_icc": 1.5}, "workload.reward_icc=1.5"),
        ({"turns": LogNormalConfig(1.0, -1.0)}, "workload.turns.sigma=-1.0"),
        ({"tool_s": LogNormalConfig(-1.0)}, "workload.tool_s.median=-1.0"),
        ({"start_s": LogNormalConfig(1.0, 1.0, 2.0)}, "workload.start_s.icc=2.0"),
        ({"failed_turns_factor": 0.0}, "workload.failed_turns_factor=0.0"),
        ({"long_actions": "drop"}, "workload.long_actions=drop"),
        ({"difficulties": {"a": DifficultyConfig(1.0, 2.0)}}, "workload.difficulties.a.success"),
        ({"difficulties": {"a": DifficultyConfig(0.0, 0.5)}}, "workload.difficulties"),
        ({"name": "none"}, "workload=none"),
    ],
)
def test_impossible_workloads_are_named(change: dict[str, object], message: str) -> None:
    config = WorkloadConfig(**{"name": "x", "turns": LogNormalConfig(1.0), **change})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        make_workload(config, WIDE)
