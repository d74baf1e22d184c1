"""Predictions of published figures: every case can be run, and is told as what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import composition, predict, simulation
from harness.costs.select import cost_model
from harness.protocols import UsageError

PUBLISHED = Path(__file__).parents[2] / "results" / "reference" / "published.json"


def test_every_case_has_a_published_figure() -> None:
    published = json.loads(PUBLISHED.read_text())
    assert all(predict._lookup(published, case.key) > 0 for case in predict.CASES)
    assert len({(case.key, case.given) for case in predict.CASES}) == len(predict.CASES)


@pytest.mark.parametrize("overrides", sorted({case.overrides for case in predict.CASES}))
def test_every_case_can_be_run(overrides: tuple[str, ...]) -> None:
    config = composition.compose(["env=simulated", "tracking=none", *overrides])
    simulation.settle(config)
    assert "simulated" in cost_model(config).label


def test_no_published_figure_is_given_to_its_own_case() -> None:
    published = json.loads(PUBLISHED.read_text())
    for case in predict.CASES:
        figure = f"{predict._lookup(published, case.key):g}"
        assert all(figure != override.partition("=")[2] for override in case.overrides)


def test_the_table_says_what_was_given_and_that_it_is_virtual() -> None:
    row: dict[str, Any] = {
        "key": "a.b", "published": 10.0, "predicted": 12.5, "error": 0.25,
        "hardware": "VIRTUAL 8xB200", "clock": "virtual", "overrides": ("x=1",), "given": "devices",
        "fitted": False,
    }  # fmt: skip
    assert "| a.b | 10 | 12.5 | +25.0 % | VIRTUAL 8xB200 | virtual | `x=1` | devices |" in (
        predict.table([row])
    )
    assert "| +25.0 %, fitted |" in predict.table([row | {"fitted": True}])


def test_rows_that_were_fitted_to_are_told_and_are_the_synchronous_ones() -> None:
    fitted = {case.key.rpartition(".")[2] for case in predict.CASES if case.fitted}
    assert fitted == {"sync", "sync_learner_idle_fraction"}
    assert all("fitted to" in case.given for case in predict.CASES if case.fitted)


def test_a_case_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only=nothing"):
        predict.predict({}, tmp_path, "nothing")
