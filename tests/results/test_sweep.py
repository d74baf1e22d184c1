"""The sweep's tables on standard output, what is left out on standard error."""

from __future__ import annotations

import sys
from pathlib import Path

from results.sweep import main


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["results.sweep", *arguments])
    return main()


def test_tables_notes_and_what_is_left_out(make_run, tmp_path: Path, monkeypatch, capsys):
    make_run("a", "sync")
    make_run("b", "stream", update_s=5.0)
    make_run("c", "stream", seed=1, status="interrupted")
    assert run(monkeypatch, str(tmp_path / "runs")) == 0
    printed = capsys.readouterr()
    assert "| sync / schedule, update time |" in printed.out
    assert printed.err == "left out: c: status interrupted\n"


def test_nothing_to_show_is_one_clear_line(tmp_path: Path, monkeypatch, capsys):
    assert run(monkeypatch, str(tmp_path)) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}: no finished run to compare\n"
    assert run(monkeypatch) == 2
    assert capsys.readouterr().err.startswith("usage:")


def test_what_was_varied_on_purpose_is_said(make_run, tmp_path: Path, monkeypatch, capsys):
    make_run("a", "sync")
    make_run("b", "sync", config={"rollout": {"group_size": 8}})
    assert run(monkeypatch, str(tmp_path / "runs")) == 2
    assert "rollout.group_size (4 in a, 8 in b)" in capsys.readouterr().err
    assert run(monkeypatch, str(tmp_path / "runs"), "vary=rollout.group_size") == 0
    assert "sync, rollout.group_size=8" in capsys.readouterr().out
