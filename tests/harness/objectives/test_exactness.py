"""The exactness table is complete, says what the start-up check does, and is what the docs show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness import validation
from harness.composition import compose
from harness.config import Config, ObjectiveConfig, flatten, lookup
from harness.objectives.estimators import AGGREGATIONS, ESTIMATORS
from harness.objectives.exactness import TABLE, markdown
from harness.objectives.offpolicy import CORRECTIONS
from harness.objectives.rows import Bound, Row, spelt
from harness.protocols import UsageError
from harness.validation import validate

Configure = Callable[[Mapping[str, Any]], Config]
REFUSED = [row for row in TABLE if row.verdict == "refused"]
EXACT = [row for row in TABLE if row.verdict != "refused"]
DISTILLATION = ("objective.top_k", "objective.discount", "objective.task_weight")


def values_in_the_table() -> dict[str, set[Any]]:
    found: dict[str, set[Any]] = defaultdict(set)
    for row in TABLE:
        for key, value in row.option.items():
            if not isinstance(value, Bound):
                found[key].add(value)
    return found


def test_the_table_names_every_value_that_is_accepted():
    accepted: dict[str, set[Any]] = {
        key: set(choices)
        for key, choices in validation.CHOICES.items()
        if key.startswith("objective.") and key != "objective.name"
    }
    accepted["objective.estimator"] = set(ESTIMATORS)
    accepted["objective.aggregation"] = set(AGGREGATIONS)
    for key, value in flatten(ObjectiveConfig(), "objective."):
        if isinstance(value, bool):
            accepted[key] = {True, False}
    numbers = {"objective.epochs", "objective.minibatches", "objective.router_balance"}
    numbers |= {"learner.dropout", *DISTILLATION}
    mentioned = values_in_the_table()
    assert {k: v for k, v in mentioned.items() if k not in numbers} == accepted
    assert {k: v for k, v in mentioned.items() if k in numbers} == {
        "objective.epochs": {1}, "objective.minibatches": {1},
        "objective.router_balance": {0}, "learner.dropout": {0},
        **{key: {0} for key in DISTILLATION},
    }  # fmt: skip


def test_every_setting_of_the_objective_is_in_the_table_or_a_mere_number():
    in_an_option = {key for row in TABLE for key in row.option}
    mere_numbers = {
        "objective.name", "objective.epsilon", "objective.constant_tokens",
        "objective.importance.low", "objective.importance.high",
        "objective.clip.low", "objective.clip.high", "objective.clip.dual",
    }  # fmt: skip
    keys = {key for key, _ in flatten(ObjectiveConfig(), "objective.")}
    assert keys - in_an_option == mere_numbers


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_every_row_has_an_example_under_which_it_applies(row: Row, configure: Configure):
    assert row.example
    assert row.applies(configure(row.example))
    assert row.why
    assert bool(row.nearest) == (row.verdict == "refused")


@pytest.mark.parametrize("row", EXACT, ids=str)
def test_an_exact_option_starts(row: Row, configure: Configure):
    validate(configure(row.example))


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_a_refused_option_says_what_why_and_what_to_take(row: Row, configure: Configure):
    config = configure(row.example)
    with pytest.raises(UsageError) as caught:
        validate(config)
    key = next(iter(row.option))
    said = str(caught.value)
    assert said == f"{key}={spelt(lookup(config, key))}: {row.why}; take {row.nearest}"
    assert "\n" not in said


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_the_nearest_exact_setting_starts(row: Row):
    example = [f"{key}={spelt(value)}" for key, value in row.example.items()]
    validate(compose([*example, *row.nearest.split()]))


def test_only_leave_one_out_std_needs_buckets():
    """What the table says of buckets is what the estimators say of themselves."""
    needing = {r.option["objective.estimator"] for r in TABLE if r.verdict == "exact_with_buckets"}
    assert needing == {name for name, e in ESTIMATORS.items() if not e.affine}


def test_the_document_is_the_table():
    document = Path(__file__).parents[3] / "docs" / "exactness.md"
    assert document.read_text() == "\n".join(markdown()) + "\n"
    rows = len(TABLE) + len(CORRECTIONS)
    assert sum(line.startswith("| `") for line in markdown()) == 1 + rows


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("clip.kind=cispo", "objective.clip.bound=null: objective.clip.kind=cispo"),
        ("clip.kind=ppo clip.dual=3", "take kind dual_clip"),
        ("clip.form=token", "objective.clip.kind=none does not read it"),
        (
            "clip.kind=clip_higher clip.low=0.3 clip.high=.2",
            "objective.clip.high=0.2: below objective.clip.low=0.3",
        ),
        ("clip.dual=1 clip.kind=dual_clip", "it must be above 1"),
        ("importance.high=2", "take kind truncate or mask"),
        ("importance.kind=truncate", "objective.importance.high=null"),
        ("importance.kind=truncate importance.low=1", "truncate has an upper bound alone"),
        ("importance.kind=mask importance.low=2 importance.high=1", "the band is [low, high]"),
        ("overlong.in_group_mean=false", "set objective.overlong.mask=true"),
        ("kl.coefficient=-1", "objective.kl.coefficient=-1.0: out of range"),
        ("kl.estimator=k4", "there is: k1, k2, k3"),
        ("clip.kind=clip_high", "did you mean clip_higher?"),
    ],
)
def test_a_contradiction_is_one_line(overrides: str, words: str):
    with pytest.raises(UsageError) as caught:
        validate(compose([f"objective.{o}" for o in overrides.split()]))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_largest_ratio_of_exactly_one_clips_nothing():
    validate(compose(["objective.clip.kind=cispo", "objective.clip.bound=1"]))


def test_terms_without_a_coefficient_may_say_anything():
    validate(compose(["objective.kl.place=reward", "objective.entropy.estimator=sampled"]))


def test_a_misspelt_key_of_a_term_is_named():
    from hydra.errors import ConfigCompositionException

    from harness.composition import explain

    with pytest.raises(ConfigCompositionException) as caught:
        compose(["objective.kl.coeficient=0.1"])
    assert "did you mean objective.kl.coefficient?" in explain(caught.value)
