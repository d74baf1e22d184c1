"""The tables' figures by hand, what is never averaged, and the three forms."""

from __future__ import annotations

import csv
import math
import shutil
import subprocess
from pathlib import Path

import pytest

from results.ablations import ablations, parity, published
from results.comparison import Comparison
from results.load import load
from results.tables import Cell, Table, document, learning, main_tables, resources


def compare(tmp_path: Path, *swept: str) -> Comparison:
    return Comparison(load(tmp_path / "runs").runs, swept)


def column(table: Table, name: str) -> list[Cell]:
    at = list(table.columns).index(name)
    return [row[at] for row in table.rows]


def texts(table: Table, name: str) -> list[str]:
    return [cell.text for cell in column(table, name)]


SPEEDUP = "sync / schedule, update time"


def test_figures_by_hand(make_run, tmp_path: Path):
    make_run("0", "sync", 0, 8.0, 0.5)
    make_run("1", "sync", 1, 10.0, 0.375)
    make_run("2", "stream", 0, 4.0, 0.5)
    make_run("3", "stream", 1, 10.0, 0.625)
    table = learning(compare(tmp_path), 0.5)
    assert texts(table, "schedule") == ["sync", "stream, release=reward"]
    # Means 9 and 7; standard errors 1 and 3; t(1) = 12.706.
    assert texts(table, "update, s") == ["9.00 (-3.71 to 21.71)", "7.00 (-31.12 to 45.12)"]
    # Differences 0 and 25: 12.5 +- 12.706 x 12.5.
    own, other = column(table, "after - sync's, points")
    assert own.text == "-" and other.text == "+12.5 (-146.3 to +171.3)"
    assert texts(table, "told apart?")[1].startswith("not resolved; about 11 seeds")
    # 43.75 +- 79.4 %: a share is cut at what it can be.
    assert texts(table, "solve rate after")[0] == "43.8 % (0.0 to 100.0)"
    # 8/4 and 10/10.
    assert column(table, SPEEDUP)[1].value == pytest.approx(math.sqrt(2))
    # Reached 0.5 at the end (40 s), never, at the end, at the end.
    assert texts(table, "time to target, s") == [
        "40 (median; 1 of 2 reached it)", "40 (median; 2 of 2 reached it)",
    ]  # fmt: skip


def test_one_seed_has_no_interval_anywhere(make_run, tmp_path: Path):
    make_run("0", "sync", 0, 8.0)
    make_run("1", "stream", 0, 4.0)
    tables = main_tables(compare(tmp_path), 0.5)
    assert len(tables) == 3
    assert not [c for t in tables for row in t.rows for c in row if c.interval is not None]
    assert texts(tables[0], "told apart?") == ["-", "one seed: no interval"]
    assert "Rows of one seed have no interval." in tables[0].notes


def test_only_seeds_are_averaged(make_run, tmp_path: Path):
    """Placements, staleness bounds, learning rates and budgets are rows of their own."""
    old = {"staleness": {"mean": 0.5, "max": 1, "violations": {"bound": 1}}}
    small = {"budget": {"kind": "device_s", "limit": 40.0, "spent": 40.0}}
    make_run("0", "sync", 0, 8.0)
    make_run("1", "sync", 0, 5.0, placement="colocated")
    make_run("2", "async", 0, 6.0, **old)
    make_run("3", "async", 0, 4.0, **small)
    make_run("4", "sync", 0, 10.0, **small)
    table = learning(compare(tmp_path), None)
    speedups = [c.value for c in column(table, SPEEDUP)]
    assert list(zip(texts(table, "schedule"), texts(table, "budget"), speedups, strict=True)) == [
        ("sync", "40 device_s", 1.0),
        ("async, max_staleness=4", "40 device_s", pytest.approx(2.5)),
        ("sync", "80 device_s", 1.0),
        ("sync, colocated", "80 device_s", pytest.approx(1.6)),
        ("async, max_staleness=1", "80 device_s", pytest.approx(8 / 6)),
    ]


def test_learning_rates_pair_with_their_own(make_run, tmp_path: Path):
    for k, (schedule, rate, update_s) in enumerate(
        [("sync", 1e-4, 8.0), ("sync", 1e-3, 6.0), ("stream", 1e-3, 3.0), ("stream", 3e-4, 3.0)]
    ):
        settings = {"name": schedule, "learning_rate": rate}
        make_run(str(k), schedule, 0, update_s, config={"schedule": settings})
    table = learning(compare(tmp_path), None)
    found = dict(zip(texts(table, "schedule"), column(table, SPEEDUP), strict=True))
    assert found["stream, release=reward, schedule.learning_rate=0.001"].value == pytest.approx(2)
    assert found["stream, release=reward, schedule.learning_rate=0.0003"].text == "-"


def test_a_repeat_is_no_other_seed(make_run, tmp_path: Path):
    make_run("0", "sync", 3)
    make_run("1", "sync", 3)
    with pytest.raises(ValueError, match="the same seed twice in 0, 1"):
        assert compare(tmp_path).rows


def test_another_baseline_is_named_as_its_row_is(make_run, tmp_path: Path):
    make_run("0", "sync", 0, 8.0)
    make_run("1", "stream", 0, 4.0)
    runs = load(tmp_path / "runs").runs
    table = learning(Comparison(runs, baseline="stream, release=reward"), None)
    assert texts(table, "stream, release=reward / schedule, update time") == ["1", "0.50"]
    with pytest.raises(ValueError, match="baseline=strem: there are stream, release=reward; sync"):
        Comparison(runs, baseline="strem")


def test_what_was_not_measured_is_no_figure(make_run, tmp_path: Path):
    none = {"time": {"per_update_s": None, "tail_s": None}, "idle": {}, "trajectories_lost": None}
    make_run("0", "sync", 0, 8.0)
    make_run("1", "stream", 0, 8.0, None, updates=0, **none)
    tables = main_tables(compare(tmp_path), None)
    assert texts(tables[0], "solve rate after")[1] == "-"
    assert texts(tables[0], SPEEDUP)[1] == "-"
    assert texts(tables[0], "told apart?")[1] == "not measured"
    assert texts(tables[1], "learner idle")[1] == texts(tables[1], "trajectories lost")[1] == "-"
    assert len(tables[2].rows) == 1


def test_a_simulated_run_says_so_on_its_row(make_run, tmp_path: Path):
    make_run("0", "sync", clock="virtual")
    make_run("1", "stream", clock="virtual")
    for table in (*main_tables(compare(tmp_path), None), parity(compare(tmp_path))):
        for row in table.rows:
            assert any("VIRTUAL" in cell.text for cell in row)
            assert any("VIRTUAL clock" in cell.text for cell in row)


def test_ablations_are_of_what_was_varied(make_run, tmp_path: Path):
    make_run("0", "sync", 0, 10.0)
    for k, release in enumerate(("group", "reward", "submit")):
        make_run(str(k + 1), "stream", 0, 8.0 - k, release=release)
    (table,) = ablations(compare(tmp_path))
    assert table.key == "ablation_release"
    assert texts(table, "release rung") == ["group", "reward", "submit"]
    assert [c.value for c in column(table, "sync / schedule")] == pytest.approx(
        [10 / 8, 10 / 7, 10 / 6]
    )
    assert texts(table, "ledger, MB") == ["3.0"] * 3


def test_group_sizes_pair_with_the_baseline_of_their_size(make_run, tmp_path: Path):
    for size, update_s in ((4, 8.0), (8, 12.0)):
        settings = {"rollout": {"group_size": size}}
        make_run(f"sync{size}", "sync", 0, update_s, config=settings)
        make_run(f"stream{size}", "stream", 0, 4.0, config=settings)
    (table,) = ablations(compare(tmp_path, "rollout.group_size"))
    found = dict(zip(texts(table, "schedule"), column(table, "sync / schedule"), strict=True))
    assert found["stream, release=reward, rollout.group_size=4"].value == pytest.approx(2)
    assert found["stream, release=reward, rollout.group_size=8"].value == pytest.approx(3)


def test_parity_and_published_figures(make_run, tmp_path: Path):
    make_run("0", "sync", 0, 10.0)
    make_run("1", "stream", 0, 5.0)
    (row,) = parity(compare(tmp_path)).rows
    assert [cell.text for cell in row][4:] == ["2", "9.2e-07", "7.0e-07", "9.0e-05", "7.0e-05",
                                              "yes"]  # fmt: skip
    table = published(compare(tmp_path))
    found = dict(zip(texts(table, "what"), texts(table, "times"), strict=True))
    assert found["stream / sync, GRPO step"] == "1.91"
    assert found["stream, release=reward, update time"] == "2.00"


def test_csv_has_figures_at_full_length(make_run, tmp_path: Path):
    for seed, update_s in enumerate((7.0, 8.0, 10.0)):
        make_run(f"a{seed}", "sync", seed, update_s)
    (line,) = csv.DictReader(learning(compare(tmp_path), None).csv().splitlines())
    assert float(line["update, s"]) == pytest.approx(25 / 3, rel=1e-15)
    assert float(line["update, s, low"]) < 25 / 3 < float(line["update, s, high"])
    assert line["budget"] == "80 device_s" and line["schedule"] == "sync"


def test_markdown_keeps_its_columns():
    table = Table("k", "T", ("a", "b"), [[Cell("x|y"), Cell("1", 1.0)]], ["A note."])
    assert table.markdown() == "| a | b |\n| --- | --- |\n| x\\|y | 1 |\n\nA note.\n"


def test_latex_escapes_what_it_would_stumble_over():
    text = r"\ & % $ # _ { } ~ ^ < > |"
    line = Table("k", "T", ("a",), [[Cell(text)]]).latex().splitlines()[4]
    assert line == (
        r"\textbackslash{} \& \% \$ \# \_ \{ \} \textasciitilde{} \textasciicircum{} "
        r"\textless{} \textgreater{} \textbar{} \\ \hline"
    )


@pytest.mark.slow
def test_latex_compiles(make_run, tmp_path: Path):
    """With texlive-latex-base alone (apt-get install texlive-latex-base)."""
    for seed in range(2):
        make_run(f"a{seed}", "sync", seed)
        make_run(f"b{seed}", "stream", seed)
    comparison = compare(tmp_path)
    tables = [*main_tables(comparison, 0.5), parity(comparison), published(comparison)]
    (tmp_path / "tables.tex").write_text(document(tables), encoding="utf-8")
    latex = shutil.which("pdflatex")
    assert latex is not None, "pdflatex is not installed: apt-get install texlive-latex-base"
    done = subprocess.run(
        [latex, "-interaction=nonstopmode", "-halt-on-error", "tables.tex"],
        cwd=tmp_path, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert (tmp_path / "tables.pdf").stat().st_size > 10_000


@pytest.mark.slow
def test_a_thousand_runs_tabulate_in_seconds(make_run, tmp_path: Path):
    import time

    for n in range(1000):
        make_run(f"{n}", ("sync", "stream", "async", "one_step_off")[n % 4], seed=n // 4)
    began_s = time.process_time()
    comparison = compare(tmp_path)
    tables = [*main_tables(comparison, comparison.target()), resources(comparison)]
    assert sum(len(t.rows) for t in tables) == 16
    assert time.process_time() - began_s < 30
