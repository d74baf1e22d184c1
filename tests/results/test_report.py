"""From folders to files: what the report writes, says and refuses."""

from __future__ import annotations

import base64
import csv
import html.parser
import json
import re
import sys
import threading
from pathlib import Path

import pytest

from results import report
from results.load import load
from results.report import Options, build, command, parse, watch


@pytest.fixture
def six_runs(make_run, tmp_path: Path) -> Path:
    """Three schedules x two seeds, with all that figures are made of."""
    for n, (schedule, update_s) in enumerate([("sync", 10.0), ("async", 7.0), ("stream", 6.0)]):
        for seed in range(2):
            make_run(f"{n}{seed}_{schedule}", schedule, seed, update_s + seed, 0.375 + n / 8,
                     detailed=True)  # fmt: skip
    return tmp_path / "runs"


class Page(html.parser.HTMLParser):
    """Balance, links out of the page, images and the text."""

    VOID = frozenset({"meta", "img", "br", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.images: list[bytes] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        if "id" in given:
            assert given["id"] not in self.ids
            self.ids.add(given["id"])
        if tag == "a":
            self.links.add(given["href"].removeprefix("#"))
        if tag in ("script", "link", "iframe"):
            self.outside.append(tag)
        source = given.get("src")
        if source is not None:
            kind, _, data = source.partition(",")
            assert kind == "data:image/png;base64"
            self.images.append(base64.b64decode(data, validate=True))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["results.report", *arguments])
    return report.main()


@pytest.mark.slow
def test_from_runs_to_a_page_in_one_command(six_runs: Path, tmp_path: Path, monkeypatch, capsys):
    out = tmp_path / "out"
    assert run(monkeypatch, f"runs={six_runs}", f"out={out}") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"] == 6 and all(Path(file).stat().st_size for file in told["files"])
    figures = {
        "gantt", "accuracy_time", "accuracy_budget", "reward", "time_to_target", "idle",
        "staleness", "lengths", "arrivals", "predicted",
    }  # fmt: skip
    for kind, start in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        found = {path.stem: path for path in (out / "figures").glob(f"*.{kind}")}
        assert set(found) == figures
        assert all(path.read_bytes().startswith(start) for path in found.values())
    page = Page((out / "report.html").read_text())
    assert page.open == [] and page.outside == [] and len(page.images) == len(figures)
    assert page.links <= page.ids
    assert "url(" not in (out / "report.html").read_text()
    for needed in (
        "Budget sweep: all runs have one budget", "wall clock, engine torch, sandbox bubblewrap",
        f"python -m results.report runs={six_runs} out={out} only=gantt", "c0ffee",
    ):  # fmt: skip
        assert needed in page.text
    manifest = json.loads((out / "report.json").read_text())
    assert {*manifest["figures"]} == figures and len(manifest["runs"]) == 6
    rows = list(csv.DictReader((out / "tables" / "comparison.csv").open()))
    assert [row["schedule"] for row in rows] == ["sync", "async, max_staleness=4",
                                                 "stream, release=reward"]  # fmt: skip
    # The command under a figure makes that figure and nothing else.
    (out / "figures" / "idle.png").unlink()
    again = manifest["figures"]["idle"]["command"].split()[3:]
    assert run(monkeypatch, *again) == 0
    made = json.loads(capsys.readouterr().out)["files"]
    assert sorted(Path(file).name for file in made) == ["idle.pdf", "idle.png"]


@pytest.mark.slow
def test_simulated_runs_say_so_in_tables_captions_and_on_the_page(make_run, tmp_path: Path):
    for schedule in ("sync", "stream"):
        make_run(schedule, schedule, clock="virtual", detailed=True)
    out = tmp_path / "out"
    build(Options(str(tmp_path / "runs"), out), load(tmp_path / "runs"))
    page = (out / "report.html").read_text()
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert captions and all(c.startswith("VIRTUAL TIME") for c in captions)
    assert 'class="virtual"' in page
    for line in csv.DictReader((out / "tables" / "comparison.csv").open()):
        assert "VIRTUAL" in line["ran on"]


def test_one_bare_run_gives_tables_and_reasons_and_no_empty_figure(make_run, tmp_path: Path):
    folder = make_run("only", accuracy={"initial": None, "final": None}, resources=None)
    for name in ("updates.csv", "evaluation.jsonl"):
        (folder / name).unlink()
    out = tmp_path / "out"
    build(Options(str(tmp_path / "runs"), out), load(tmp_path / "runs"))
    assert list((out / "figures").iterdir()) == []
    manifest = json.loads((out / "report.json").read_text())
    assert len(manifest["not_drawn"]) == 11 and all(manifest["not_drawn"].values())
    assert "one seed, no interval: sync" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["runs=x"], "out= is missing"),
        (["out=x"], "runs= is missing"),
        (["runs=x", "out=y", "colour=z"], "colour=z: no such option"),
        (["runs=x", "out=y", "target=high"], "target=high: a number is needed"),
        (["runs=x", "out=y", "interval=0"], "interval=0: more than 0 is needed"),
        (["runs=x", "out=y", "only=pie"], "only=pie: there are accuracy_budget"),
    ],
)
def test_a_misspelt_option_is_one_line(arguments: list[str], says: str, monkeypatch, capsys):
    assert run(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_nothing_and_mixed_inputs_are_one_line(make_run, tmp_path: Path, monkeypatch, capsys):
    out = f"out={tmp_path / 'out'}"
    (tmp_path / "empty").mkdir()
    assert run(monkeypatch, f"runs={tmp_path / 'empty'}", out) == 2
    assert capsys.readouterr().err == "error: no finished run to compare\n"
    make_run("a", "sync")
    make_run("b", "sync", clock="virtual")
    assert run(monkeypatch, f"runs={tmp_path / 'runs'}", out) == 2
    assert "clock (virtual in b, wall in a)" in capsys.readouterr().err


def test_the_command_is_one_that_gives_the_same_options():
    options = Options("a b", Path("out"), "sqlite:///x.db", ("rollout.group_size",), "async", 0.4)
    import shlex

    words = shlex.split(command(options))
    assert words[:3] == ["python", "-m", "results.report"]
    assert parse(words[3:]) == options


def test_a_page_is_written_again_while_a_run_goes_on(make_run, tmp_path: Path):
    """It begins without any finished run, shows what is done so far, and ends with the run."""
    folder = make_run("slow", updates=1)
    summary = (folder / "summary.json").read_text()
    (folder / "summary.json").unlink()
    out = tmp_path / "out"
    options = Options(str(tmp_path / "runs"), out, only=(), interval=0.2, watch=True)
    watcher = threading.Thread(target=watch, args=(options,), daemon=True)
    watcher.start()

    def page_has(text: str) -> bool:
        for _ in range(4000):
            path = out / "report.html"
            if path.is_file() and text in path.read_text():
                return True
            watcher.join(0.05)
        return False

    assert page_has('http-equiv="refresh"') and page_has("Under way")
    with (folder / "updates.csv").open("a") as file:
        file.write("2,2,15,25,12.5,1,9,0.875,0.6,0.6,40,2 3,,,\n")
    assert page_has("<td>0.875</td>")
    (folder / "summary.json").write_text(summary)
    watcher.join(250)
    assert not watcher.is_alive()
    text = (out / "report.html").read_text()
    assert "http-equiv" not in text and "Under way" not in text and "Main comparison" in text
