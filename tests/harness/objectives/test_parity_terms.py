"""The parity check with the objective's further terms, as its command line takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.config import ObjectiveConfig
from harness.protocols import UsageError
from thundersync.check import Case, Check, relative_error
from thundersync.parity import parse, select

CASE = Case("mean", "token_mean", "submit", "auto")


def settings(text: str) -> list[str]:
    return [f"objective.{part}" for part in text.split()]


@pytest.fixture(scope="module")
def plain(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Check:
    return Check(folder, "float64", tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize(
    "terms",
    [
        "kl.coefficient=0.1",
        "kl.coefficient=0.1 kl.estimator=k1 kl.place=reward",
        "entropy.coefficient=0.1",
        "importance.kind=truncate importance.high=1.1",
        "overlong.mask=true",
    ],
)
def test_a_term_changes_the_update_and_not_the_parity(
    terms: str, plain: Check, folder: Path, tmp_path: Path
):
    with_terms = Check(folder, "float64", tmp_path, objective=parse(settings(terms)).terms)
    assert with_terms.row(CASE)["ok"]
    update, _ = with_terms.reference(CASE)
    assert relative_error(update, plain.reference(CASE)[0]) > 1e-4


def test_cases_that_do_not_take_the_terms_are_left_out():
    options = parse([*settings("entropy.coefficient=0.1"), "cases=all"])
    kept = {case.estimator for case in select(options.cases, options.terms)}
    assert {case.estimator for case in select("all")} - kept == {"batch_std"}


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("kl.coeficient=0.1", "Key 'coeficient'"),
        ("kl.coefficient=x", "could not be converted"),
        ("kl.coefficient=-1", "out of range"),
        ("kl.place=penalty", "there is: loss, reward"),
        ("epochs=2", "take objective.epochs=1"),
        ("importance.kind=mask", "objective.importance.high=null"),
    ],
)
def test_a_wrong_term_is_one_line(argument: str, words: str):
    with pytest.raises(UsageError) as caught:
        parse(settings(argument))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_terms_the_objective_is_the_default():
    assert parse([]).terms == ObjectiveConfig()
