"""Progress and the closing table, on streams that are no terminal and take ASCII only."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
from pathlib import Path
from typing import Any

import pytest

from harness import job, multirun, run
from harness.composition import compose
from harness.display import Display, print_closing_table
from harness.records import blank_summary


def _ascii_stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict", write_through=True)


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def test_without_a_terminal_an_update_is_one_plain_line() -> None:
    stream = _ascii_stream()
    with Display(stream) as display:
        display.note("sandbox: bubblewrap, because no Docker engine answers — é")
        display.phase("training")
        display.update({"update": 1, "budget/spent": 1.0, "reward/mean": 0.5, "idle/learner": None})
    lines = _written(stream).splitlines()
    assert lines[0].startswith("sandbox: bubblewrap")
    assert lines[1] == "[00:00] training"
    assert "update 1" in lines[2] and "reward 0.500" in lines[2] and "idle learner -" in lines[2]
    assert len(lines) == 3
    assert "\x1b" not in "".join(lines)


def test_a_terminal_gets_a_live_panel_that_leaves_nothing_behind() -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w", encoding="utf-8") as stream, Display(stream) as display:
        display.phase("training")
        display.update({"update": 1})
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the terminal's other end is closed
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    assert b"training" in shown
    assert b"idle learner" in shown


def test_the_closing_table_fits_eighty_columns_and_says_before_and_after() -> None:
    summary = blank_summary(compose(["schedule=stream"]))
    summary["accuracy"] |= {
        "initial": 0.25, "initial_standard_error": 0.054,
        "final": 0.5, "final_standard_error": 0.0625, "tasks": 64,
    }  # fmt: skip
    summary["infrastructure_errors"] = {"start": 2}
    summary |= {"overlap_efficiency": 0.914, "release_updates": {"group": 1, "submit": 19}}
    summary["time"]["decide_s"] = 0.0421
    stream = _ascii_stream()
    print_closing_table(summary, Path("outputs/summary.json"), stream)
    text = _written(stream)
    assert "25.0% +- 5.4% before -> 50.0% +- 6.2% after" in text
    assert "start 2" in text
    assert "efficiency 0.91, played at group x1, submit x19" in text
    assert "deciding took 0.042 s an update" in " ".join(text.replace("|", " ").split())
    assert max(map(len, text.splitlines())) <= 80


def _parity(ok: bool | None, held: int, checked: int) -> dict[str, object]:
    figures = dict.fromkeys(("parameter_gap", "control_parameter_gap"), 1e-9 if checked else None)
    return {
        "checked": checked, "held": held, "ok": ok,
        "gradient_relative_error_max": 9.12e-6 if checked else None,
        "control_relative_error_max": 2.34e-7 if checked else None, **figures,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("parity", "words"),
    [
        (_parity(True, 2, 2), "2 of 2 updates hold; error up to 9.1e-06, control 2.3e-07"),
        (_parity(False, 1, 2), "DOES NOT HOLD: 1 of 2 updates hold; error up to 9.1e-06"),
        (_parity(None, 0, 0), "no update was checked"),
    ],
)
def test_a_parity_check_is_in_the_closing_table(parity, words) -> None:
    summary = blank_summary(compose([])) | {"parity": parity}
    stream = _ascii_stream()
    print_closing_table(summary, Path("summary.json"), stream)
    text = _written(stream)
    (row,) = [line for line in text.splitlines() if line.startswith("| parity ")]
    assert words[:40] in row
    assert words in " ".join(text.replace("|", " ").split())
    assert max(map(len, text.splitlines())) <= 80


def test_a_run_without_parity_checks_has_no_such_row() -> None:
    stream = _ascii_stream()
    print_closing_table(blank_summary(compose([])), Path("summary.json"), stream)
    assert "parity" not in _written(stream)


def test_a_failed_parity_check_is_seen_by_a_program_and_on_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = blank_summary(compose([])) | {"parity": _parity(False, 1, 2)}
    played = {"release_updates": {"group": 1, "submit": 1}}
    (tmp_path / "summary.json").write_text(json.dumps(summary | played))
    monkeypatch.setattr(job, "folders", [tmp_path])
    monkeypatch.setattr(multirun, "current", lambda: None)
    run.close(sweep=False)
    captured = capsys.readouterr()
    closing = json.loads(captured.out.splitlines()[-1])
    assert closing["parity_ok"] is False
    assert closing["release_updates"] == played["release_updates"]
    assert captured.err.startswith("parity DOES NOT HOLD: 1 of 2 updates hold")
    held = summary | {"parity": _parity(True, 2, 2)}
    (tmp_path / "summary.json").write_text(json.dumps(held))
    run.close(sweep=False)
    captured = capsys.readouterr()
    closing = json.loads(captured.out.splitlines()[-1])
    assert closing["parity_ok"] is True
    assert captured.err == "" and "release_updates" not in closing
    assert "parity_ok" not in run.headline(tmp_path, blank_summary(compose([])))


def _closed(summary: dict[str, Any]) -> str:
    """The closing table as one line of words; fits 80 columns."""
    stream = _ascii_stream()
    print_closing_table(summary, Path("summary.json"), stream)
    text = _written(stream)
    assert max(map(len, text.splitlines())) <= 80
    return " ".join(text.replace("|", " ").split())


def test_the_closing_table_tells_idle_from_blocked_and_names_what_was_stale() -> None:
    summary = blank_summary(compose(["schedule=sync", "schedule.placement=colocated"]))
    shares = {"busy": 0.25, "blocked": 0.125, "idle": 0.625}
    nothing = dict.fromkeys(shares)
    summary |= {
        "idle": {"learner": 0.75, "engine": 0.5, "devices": 0.251},
        "resources": {"learner": shares, "engine": shares | {"blocked": 0.07}, "sandbox": nothing},
        "staleness": {"mean": 0.8214, "max": 3,
                      "violations": {"bound": 2, "tokens": 12345, "trajectories": 67}},
        "nvml": {"utilisation": 0.875, "per_gpu": [0.875], "samples": 1200, "error": None},
    }  # fmt: skip
    text = _closed(summary)
    assert "sync release=batch colocated on swebench/mini" in text
    assert "idle or blocked learner 75%, engine 50%, devices 25%" in text
    assert "of it blocked learner 12%, engine 7% " in text
    assert "GPUs by NVML 88% utilised, 1200 samples" in text
    assert "mean 0.82, max 3; past the bound of 2: 12345 tokens of 67 trajectories" in text


def test_a_fresh_run_on_a_cpu_has_no_rows_about_staleness_and_gpus() -> None:
    summary = blank_summary(compose(["schedule=stream"]))
    summary["staleness"] |= {"mean": 0.0, "max": 0}
    text = _closed(summary)
    assert "idle or blocked learner -, engine -, devices -" in text
    assert not any(word in text for word in ("staleness", "NVML", "of it blocked", "colocated"))


def test_turn_gradients_say_what_was_kept_and_why_not_all_of_it() -> None:
    summary = blank_summary(compose([]))
    assert "turn gradients" not in _closed(summary)
    summary["segments"] = {
        "way": "auto", "max_live_bytes": 1, "trajectories": 7, "retained_tokens": 81,
        "rerun_tokens": 45, "live_bytes_peak": 2_600_000, "fallbacks": 0, "first_fallback": None,
    }  # fmt: skip
    said = _closed(summary)
    for words in ("auto: 7 trajectories", "81 tokens kept", "45 run again", "peak 3 MB"):
        assert words in said
    assert "fallbacks" not in said
    summary["segments"] |= {"fallbacks": 3, "first_fallback": "0-1: sweep from turn 2 on"}
    assert "3 fallbacks, the first: 0-1: sweep from turn 2 on" in _closed(summary)
