"""Virtual runs for tables: run once, refused in words, and each table says what it is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from harness import paper_table
from harness.entry import settings
from harness.paper_table import Row, Table, ideal_s, markdown, valley, verdict
from harness.protocols import InfrastructureError, UsageError
from harness.virtual_jobs import Simulator, made_by

SMALL = ("hardware=8xb200", "workload=math", "budget.kind=updates", "budget.limit=1",
         "rollout.groups_per_batch=4", "rollout.group_size=2")  # fmt: skip


def row(label: str, seconds: float, engines: int = 4, best: bool = True) -> Row:
    return Row(label, engines, 8 - engines, best, seconds, 1.0, 1.0, 0.25, 0.5, 0.0, 90.0,
               "VIRTUAL simulated 8xB200", "virtual")  # fmt: skip


def test_jobs_are_run_once_and_their_errors_come_back_in_words(tmp_path: Path) -> None:
    with Simulator() as simulator:
        config = simulator.config([*SMALL, "schedule=sync"])
        first = simulator.run(config, tmp_path / "run")
        assert first["clock"] == "virtual" and first["updates"] == 1
        written = (tmp_path / "run" / "summary.json").stat().st_mtime_ns
        assert simulator.run(config, tmp_path / "run") == first
        assert (tmp_path / "run" / "summary.json").stat().st_mtime_ns == written
        other = simulator.config([*SMALL, "schedule=stream"])
        assert simulator.run(other, tmp_path / "run")["schedule"] == "stream"
        assert ideal_s(tmp_path / "run") is not None
        coding = [k.replace("=math", "=swebench_verified") for k in SMALL]
        turns = simulator.config([*coding, "schedule=stream", "schedule.release=turn"])
        taken = simulator.run(turns, tmp_path / "turns")  # on four ranks
        assert taken["release"] == "turn" and taken["segments"]["trajectories"] > 0
        refused = simulator.config([*SMALL, "schedule.engine_devices=9"])
        with pytest.raises(UsageError, match=r"schedule.engine_devices=9"):
            simulator.run(refused, tmp_path / "refused")
        broken = simulator.config([*SMALL, "env.failures={start: 1.0}", "budget.limit=1"])
        broken.workload.trace = str(tmp_path / "nowhere")
        with pytest.raises((UsageError, InfrastructureError), match="nowhere"):
            simulator.run(broken, tmp_path / "broken")

        table = Table(simulator, tmp_path / "table", SMALL)
        (shared,) = table.rows("sync_colocated")
        assert (shared.engine_devices, shared.learner_devices) == (8, 8) and shared.best


def test_a_valley_is_followed_to_its_ground() -> None:
    seen: list[int] = []

    def cost(n: int) -> float:
        seen.append(n)
        return abs(n - 2) + 0.5 * (n == 1)

    assert valley(4, 1, 1, 7, cost) == 2
    assert max(seen) <= 5
    assert valley(4, 1, 1, 7, lambda n: -n) == 7
    assert valley(4, 1, 1, 7, lambda n: 0.0) == 4


def test_the_table_labels_every_row_and_says_where_streaming_loses() -> None:
    rows = [row("sync", 200, 4, False), row("sync", 150, 5), row("sync_colocated", 120, 8),
            row("stream_reward", 100), row("async_4", 80)]  # fmt: skip
    text = markdown(rows, "all 8, in turns")
    lines = text.splitlines()[2:]
    assert all("VIRTUAL" in line for line in lines)
    assert "| sync | 5 + 3 | best | 150 | 0.80 x |" in text
    assert "| sync_colocated | all 8, in turns | best | 120 | 1.00 x |" in text
    told = verdict(rows)
    assert "is faster than synchronous on its own devices at its best: 1.50 x" in told
    assert "is faster than synchronous on shared devices at its best: 1.20 x" in told
    assert "is NOT faster than asynchronous, bound 4 at its best: 0.80 x" in told
    turns = dataclasses.replace(row("stream_turn", 90), turn_bytes=37_200_000_000)
    assert "| 90 | 37 | VIRTUAL" in markdown([*rows, turns], "all 8, in turns")
    assert "exists on paper alone" not in told
    told += verdict([*rows, turns])
    assert "streaming (stream_turn, 4 + 4) is faster than" in told
    assert "stream_turn on several learner ranks exists on paper alone" in told
    assert all(line.startswith("* VIRTUAL") for line in told.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["updates=1"], "out: missing"),
        (["out=x", "schedule=sync"], "schedule=sync: no such setting"),
        (["out=x", "only=streem"], "only=streem: no such schedule"),
        (["out=x", "only=async_4"], "name one of them"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.argv", ["paper_table", *arguments])
    assert paper_table.main() == 2
    assert message in capsys.readouterr().err


def test_a_head_names_command_and_label(monkeypatch: pytest.MonkeyPatch) -> None:
    head = made_by("harness.predict", ["published=x"])
    assert "`python -m harness.predict published=x` at " in head and "VIRTUAL" in head

    monkeypatch.setenv("PATH", "")  # a machine without git
    assert " at no git commit.\n" in made_by("harness.predict", [])


def test_settings_are_taken_apart() -> None:
    found: dict[str, Any] = settings(["a=1"], ("a", "b"), ("a",), "usage")
    assert json.dumps(found) == '{"a": "1"}'
