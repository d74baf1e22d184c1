"""The parity command: its options, its closing line, and that it can fail."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.config import Config
from harness.memory import ledger_plan
from harness.protocols import Run, UsageError
from thundersync import check as check_module
from thundersync.check import CONTEXTS, FORMS, RELEASES, WAYS, Case, Check, Shape, cases
from thundersync.parity import Options, check_from_command_line, parse, select, table
from thundersync.recorded import permuted_packing
from thundersync.stream import Stream
from thundersync.terms import DISTILLATIONS, variants


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("dtyp=float32", "dtyp=float32: no such key; there is objective, dtype, policy, lora"),
        ("all", "all: no such key"),
        ("dtype=bfloat16", "dtype=bfloat16: take float32 or float64"),
        ("objective=ppo", "objective=ppo: not available; there is: grpo, opd"),
        ("objective.top_k=4", "objective.top_k=4: objective=grpo does not read it"),
        ("groups=1", "groups=1: take a number of at least 2"),
        ("size=two", "size=two: take a number of at least 3"),
        ("permutations=0", "permutations=0: take a number of at least 1"),
        ("cases=submit/*", "cases=submit/*: no such case"),
        (
            "cases=turns",
            "cases=turns: no such case; take all, release, or a name such as batch_std",
        ),
    ],
)
def test_a_mistake_is_named(argument: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse([argument])
    assert words in str(caught.value)


def test_numbers_and_words_are_taken() -> None:
    given = ["policy=smollm2", "lora=8", "tokens=24", "cases=release", "dtype=float64"]
    assert parse(given) == Options(
        policy="smollm2", lora=8, tokens=24, cases="release", dtype="float64"
    )


def test_every_distillation_is_checked_unless_one_is_said() -> None:
    assert list(variants(parse(["objective=opd"]).terms)) == list(DISTILLATIONS)
    given = variants(parse(["objective=opd", "objective.top_k=4"]).terms)
    assert {name: terms.top_k for name, terms in given.items()} == {"given": 4}
    assert list(variants(parse([]).terms)) == ["grpo"]


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
def test_streamed_distillation_is_synchronous_distillation(dtype: str, policy: Path) -> None:
    options = parse([
        "objective=opd", f"dtype={dtype}", f"policy={policy}", "permutations=3", "groups=2",
        "size=4", "tokens=24", "cases=*/token_mean/submit/auto",
    ])  # fmt: skip
    result = table(options, lambda line: None)
    assert result["ok"]
    assert {(r["objective"], r["terms"]) for r in result["rows"]} == {
        ("opd", name) for name in DISTILLATIONS
    }
    assert all(r["gradient_relative_error"] > 0 or dtype == "float64" for r in result["rows"])


def test_cases_are_chosen_by_part_by_name_and_by_wildcard() -> None:
    every = list(cases())
    assert select("all") == every
    by_turns = [
        Case(release="turn", way=way, context=context) for context in CONTEXTS for way in WAYS
    ]
    rewritten = [Case(release=r, context="rewritten") for r in ("batch", "submit")]
    assert set(select("release")) == {
        *(Case(release=r, form=f) for r in RELEASES for f in FORMS), *by_turns, *rewritten
    }  # fmt: skip
    assert {c.name for c in select("turn") if c.aggregation == "token_mean"} == {
        "/".join([Case(release="turn").name, way, *shown])
        for way in WAYS
        for shown in ((), ("rewritten",))
    }
    with pytest.raises(UsageError, match="cases=turn: no such case"):  # alone it checks nothing
        parse(["objective=opd", "objective.discount=0.5", "cases=turn"])
    without = parse(["objective=opd", "objective.discount=0.5"]).terms
    assert not any(c.release == "turn" for c in select("all", without))
    assert {c.estimator for c in select("batch_std")} == {"batch_std"}
    assert select(f"submit,{Case().name}") == [
        c for c in every if c.release == "submit" or c == Case()
    ]
    assert [c.name for c in select("mean/*/submit/bucket")] == [
        f"mean/{a}/submit/bucket" for a in dict.fromkeys(c.aggregation for c in every)
    ]


def test_a_name_may_mean_cases_of_some_distillations_alone() -> None:
    """A discount has no turns; only beside a task's reward does an estimator matter."""
    for name, some in (("turn", {"sampled", "top_k", "with_task"}), ("mean", {"with_task"})):
        terms = variants(parse(["objective=opd", f"cases={name}"]).terms)
        found = {key for key, of in terms.items() if select(name, of, terms.values())}
        assert found == some


@pytest.mark.slow
def test_the_table_has_a_row_per_case_and_the_paper_s_has_the_parameter_gap(qwen3: Path) -> None:
    lines: list[str] = []
    names = f"{Case().name},mean/token_mean/submit/*"
    options = Options(
        policy=str(qwen3), cases=names, groups=2, size=4, tokens=20, permutations=8
    )  # fmt: skip
    result = table(options, lines.append)
    assert result["ok"] and json.loads(json.dumps(result)) == result
    paper, *others = result["rows"]
    assert len(others) == 3 and len(lines) == 5
    assert all(0 < paper[k] < 1e-2 for k in ("parameter_gap", "control_parameter_gap"))
    assert [row["parameter_gap"] for row in others] == [None] * 3
    assert all(0 < row["gradient_relative_error"] < 1e-5 for row in result["rows"])
    assert f"{result['trained_parameters']:,} trained parameters" in lines[0]
    assert result["tokens"] <= 8 * 20
    assert all(len(line) <= 80 for line in lines[2:])


def test_a_check_of_turns_that_were_not_as_named_is_an_error(qwen3: Path, tmp_path: Path) -> None:
    """Nothing was begun, or memory did what the case does not say."""
    check = Check(qwen3, "float64", tmp_path, Shape(2, 4, 40))
    retained = Case(release="turn", way="retain")
    assert check.row(retained)["ok"]
    assert check.row(replace(retained, way="bounded", context="rewritten"))["ok"]
    config = check._config(replace(retained, way="whole"))
    with pytest.raises(ValueError, match=r"turn/auto/retain: \d+ fallbacks"):
        check._streamed(retained, config, [check._groups["shared"]])
    config = check._config(Case(release="submit"))
    with pytest.raises(ValueError, match="no turn was begun"):
        check._streamed(retained, config, [check._groups["shared"]])


def test_a_control_s_rows_are_sequences_except_under_a_discount(
    qwen3: Path, tmp_path: Path
) -> None:
    """A token's weight is the sum of all that follow it: cut, the update would be another one."""
    sampled = parse(["objective=opd"]).terms
    discounted = parse(["objective=opd", "objective.discount=0.9"]).terms
    for terms, cut in ((sampled, True), (discounted, False)):
        check = Check(qwen3, "float32", tmp_path, Shape(2, 3, 40), 2, objective=terms)
        _, control = check.reference(Case(release="submit", context="rewritten"))
        assert 0 < (control or 0) < 1e-5
        whole = [t for g in check._groups["rewritten"] for t in g.trajectories]
        rows = [t for chunk in permuted_packing(0, whole=not cut)(whole, 99) for t in chunk]
        sequences = sum(len(t.rewritten_at) + 1 for t in whole)
        assert len(rows) == (sequences if cut else len(whole)) and sequences > len(whole)


def test_a_check_leaves_the_weights_as_it_found_them(qwen3: Path, tmp_path: Path) -> None:
    check = Check(qwen3, "float32", tmp_path, Shape(2, 4, 30), permutations=1)
    before = [p.detach().clone() for p in check.model.parameters()]
    check.row(Case())
    for parameter, weight in zip(check.model.parameters(), before, strict=True):
        assert torch.equal(parameter, weight)


def test_the_ledger_is_planned_for_the_batch_that_is_checked(qwen3: Path, tmp_path: Path) -> None:
    """A large policy would else be refused for groups that there are not."""
    plan = ledger_plan(Check(qwen3, "float32", tmp_path, Shape(2, 4, 20))._config(Case()))
    assert (plan.open_groups, plan.group_size) == (2, 4)


class Forgetful:
    """A synchronous schedule that leaves one trajectory of each batch out."""

    name = "forgetful"

    def __init__(self, config: Config) -> None:
        self.release = config.schedule.release

    async def run(self, run: Run) -> None:
        async for batch in run.batches():
            while await batch.next() is not None:
                pass
            known = [pair for g in batch.groups for pair in run.coefficients(g).values()]
            used = [(t, a) for t, a in known if a and any(t.action_mask_T)][1:]
            await run.learner.accumulate([t for t, _ in used], [a for _, a in used])
            await run.finish_update(batch, await run.step(batch))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_wrong_schedule_fails_every_figure_and_exits_1(
    qwen3: Path, dtype: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_module, "Stream", Forgetful)
    given = [f"policy={qwen3}", f"dtype={dtype}", f"cases={Case().name}", "size=4", "tokens=30"]
    monkeypatch.setattr(sys, "argv", ["parity", *given, "permutations=3"])
    with pytest.raises(SystemExit) as ended:
        check_from_command_line()
    assert ended.value.code == 1
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    (row,) = result["rows"]
    assert not row["ok"] and not result["ok"]
    assert row["gradient_relative_error"] > 0.01
    if dtype == "float32":
        assert row["parameter_gap"] > 1000 * row["control_parameter_gap"]
    assert printed.err.splitlines()[-1].endswith("FAILED")


class Late(Stream):
    """Captures nothing before a group closes, whatever was asked for."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.release = "group"


def test_a_check_without_a_lost_capture_is_an_error(
    qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was never in the ledger cannot be thrown away from it."""
    check = Check(qwen3, "float64", tmp_path, Shape(2, 3, 20))
    assert check.row(Case(release="submit"))["ok"]
    monkeypatch.setattr(check_module, "Stream", Late)
    with pytest.raises(ValueError, match=r"submit/auto: no lost trajectory's capture"):
        check.row(Case(release="submit"))


def test_every_case_has_an_order_of_its_own(qwen3: Path, tmp_path: Path) -> None:
    check = Check(qwen3, "float64", tmp_path, Shape(2, 3, 20))

    def order(case: Case) -> list[str]:
        draw = random.Random(case.name)
        batch = check._adversarial(check._groups[case.context], draw, check._config(case))
        return [repr(event) for event in batch.ready()]

    # The first events of turns may have to be waited for.
    known = [case for case in cases() if case.release != "turn"]
    orders = [order(case) for case in known]
    assert orders == [order(case) for case in known]
    assert len({tuple(o) for o in orders}) > 0.5 * len(orders)
    assert {len(o) for o in orders} == {1, 2, 3, 4}


@pytest.mark.slow
def test_a_parameter_gap_alone_can_fail_a_case(qwen3: Path, tmp_path: Path) -> None:
    check = Check(qwen3, "float32", tmp_path, Shape(2, 4, 20), permutations=8)
    assert check.row(Case())["ok"]
    moved, control = check._gap_reference or (torch.zeros(()), 0.0)
    check._gap_reference = moved * (1 + 6 * control), control  # 6 x the control away
    row = check.row(Case())
    assert row["parameter_gap"] > 5 * control and not row["ok"]


def test_the_command_ends_with_one_json_line(qwen3: Path, tmp_path: Path) -> None:
    arguments = [f"policy={qwen3}", "dtype=float64", "cases=mean/token_mean/submit/auto"]
    ended = subprocess.run(
        [sys.executable, "-m", "thundersync.parity", *arguments, "groups=2", "size=3"],
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    assert json.loads(line)["ok"]
