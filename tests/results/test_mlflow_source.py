"""The same runs from a folder, from MLflow's SQLite file and from a real MLflow server."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.composition import compose
from harness.tracking import open_parent, open_tracker
from results import report
from results.load import check_comparable, labels, load


def track(uri: str, folders: list[Path], parent_name: str) -> None:
    """Log finished folders as the harness does, as children of one parent; one run stays open."""
    config = compose([f"tracking.uri={uri}", "tracking.experiment=compared"])
    parent = open_parent(config, parent_name)
    for folder in folders:
        tracker = open_tracker(config, folder.name)
        tracker.close("finished", json.loads((folder / "summary.json").read_text()), folder)
    parent.close("finished")


@contextlib.contextmanager
def server(where: Path) -> Iterator[str]:
    """A tracking server of its own process, with its artifacts behind it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
            "--workers", "1", "--backend-store-uri", f"sqlite:///{where}/server.db",
            "--artifacts-destination", str(where / "artifacts"),
        ],
        cwd=where, env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"},
        stdout=(where / "server.log").open("w"), stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    uri = f"http://127.0.0.1:{port}"
    try:
        deadline_s = time.monotonic() + 240
        while True:
            assert process.poll() is None, (where / "server.log").read_text()
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{uri}/health", timeout=5):
                break
            assert time.monotonic() < deadline_s, (where / "server.log").read_text()
            time.sleep(0.5)
        yield uri
    finally:
        os.killpg(process.pid, 15)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait(60)


def same_as_folders(loaded, folder: Path) -> None:
    """Figures and settings, whichever way they came; and files where a figure asks for them."""
    expected = {run.name: run for run in load(folder).runs}
    assert {run.name for run in loaded.runs} == set(expected)
    for run in loaded.runs:
        assert run.summary == expected[run.name].summary
        assert run.updates == expected[run.name].updates
        assert run.rates("final") == expected[run.name].rates("final")
    check_comparable(loaded.runs)
    assert sorted(labels(loaded.runs)) == sorted(labels(list(expected.values())))


def test_an_experiment_in_a_file(make_run, tmp_path: Path, monkeypatch, capsys):
    folders = [make_run(f"{n}", s, detailed=True) for n, s in enumerate(("sync", "stream"))]
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    track(uri, folders, "first")
    track(uri, folders[:1], "second")
    config = compose([f"tracking.uri={uri}", "tracking.experiment=compared"])
    still = open_tracker(config, "still")
    still.ready()
    loaded = load("compared/first", uri)
    same_as_folders(loaded, tmp_path / "runs")
    everything = load("compared", uri)
    assert len(everything.runs) == 3 and len({run.name for run in everything.runs}) == 3
    assert [str(left) for left in everything.under_way] == ["still: status under way, or killed"]
    still.close("failed", {}, tmp_path / "runs")
    assert [str(x) for x in load("compared", uri).left_out] == ["still: status failed"]
    arguments = [f"uri={uri}", f"out={tmp_path / 'out'}", "only=comparison"]
    monkeypatch.setattr(sys, "argv", ["results.report", "runs=compared", *arguments])
    assert report.main() == 2
    assert "the same seed twice" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["results.report", "runs=compared/first", *arguments])
    assert report.main() == 0
    assert (tmp_path / "out" / "tables" / "comparison.csv").is_file()


def test_what_is_not_there_is_one_line(tmp_path: Path):
    with pytest.raises(ValueError, match=r"uri=sqlite.*there is no such file"):
        load("any", f"sqlite:///{tmp_path}/none.db")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    open_tracker(compose([f"tracking.uri={uri}"]), "a").ready()
    with pytest.raises(ValueError, match=r"runs=other: no folder and no experiment.*thundersync"):
        load("other", uri)
    with pytest.raises(ValueError, match=r"runs=thundersync/x: no multirun of that name"):
        load("thundersync/x", uri)


@pytest.mark.slow
def test_an_experiment_on_a_server(make_run, tmp_path: Path, capsys):
    folders = [make_run(f"{n}", s, detailed=True) for n, s in enumerate(("sync", "stream"))]
    with server(tmp_path) as uri:
        track(uri, folders, "first")
        loaded = load("compared/first", uri)
        same_as_folders(loaded, tmp_path / "runs")
        assert all(run.file("timeline.json") for run in loaded.runs)
        assert capsys.readouterr().out == ""  # a run's closing JSON has standard output to itself
    with pytest.raises(ValueError, match=f"uri={uri}"):
        load("compared", uri)
