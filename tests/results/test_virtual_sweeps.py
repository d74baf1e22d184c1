"""Tables of virtual sweeps: paired by what is varied, labelled, and honest about what loses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from results import virtual_sweeps
from results.load import load
from results.virtual_sweeps import markdown, points

KEY = "rollout.group_size"
VIRTUAL = {"clock": "virtual", "engine": "simulated", "learner": "simulated",
           "hardware": "VIRTUAL simulated 8xB200", "env": "simulated"}  # fmt: skip


@pytest.fixture
def swept(make_run: Callable[..., Path], tmp_path: Path) -> Path:
    for size, sync_s, stream_s in ((4, 100.0, 100.5), (8, 200.0, 100.0)):
        for schedule, seconds in (("sync", sync_s), ("stream", stream_s)):
            make_run(f"{schedule}_{size}", schedule, update_s=seconds,
                     config={"rollout": {"group_size": size}}, **VIRTUAL)  # fmt: skip
    return tmp_path / "runs"


def test_schedules_are_paired_by_what_is_varied(swept: Path) -> None:
    found = points(load(str(swept)).runs, KEY)
    assert [(p.value, p.release, round(p.speedup, 3)) for p in found] == [
        (4, "reward", 0.995), (8, "reward", 2.0)
    ]  # fmt: skip
    text = markdown(found, KEY)
    assert "| 8 | reward | 200 | 100 | 2.00 x |" in text
    assert "It does not pay at 4 (reward)." in text
    assert all("VIRTUAL" in line for line in text.splitlines()[2:4])


def test_the_command_writes_the_table(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "table.md"
    monkeypatch.setattr("sys.argv", ["x", str(swept), f"vary={KEY}", f"out={out}"])
    assert virtual_sweeps.main() == 0
    assert out.read_text() in capsys.readouterr().out


def test_real_runs_and_unknown_keys_are_refused(
    swept: Path, make_run: Callable[..., Path], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.argv", ["x", str(swept), "vary=rollout.nothing"])
    assert virtual_sweeps.main() == 2
    assert "was not configured with it" in capsys.readouterr().err
    make_run("real", "sync", config={"rollout": {"group_size": 4}})
    with pytest.raises(ValueError, match="real: not in virtual time"):
        points(load(str(swept)).runs, KEY)
