"""The benchmark of turn gradients: its measure of memory, and one small table."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch

from thundersync import segments_bench
from thundersync.segments_bench import Options, allocations, made_turns, main


def test_the_peak_is_the_most_that_was_there_at_once() -> None:
    kept: list[Any] = []

    def work() -> None:
        kept.append(torch.empty(1000, dtype=torch.uint8))
        for _ in range(3):
            torch.empty(500_000, dtype=torch.uint8)

    found = allocations(work)
    assert found.kept_bytes == 1000
    assert found.peak_bytes == 501_000


def test_turns_are_alike_or_share_a_length() -> None:
    turns = made_turns(Options(prompt=10, observation=4, action=2), 3, vocabulary=9)
    assert [mask for _, mask in turns] == [[0] * 14 + [1] * 2, [0] * 4 + [1] * 2, [0] * 4 + [1] * 2]
    shared = made_turns(Options(tokens=100, action=3), 7, vocabulary=9)
    assert sum(len(mask) for _, mask in shared) == 100
    assert {sum(mask) for _, mask in shared} == {3}


def test_a_small_table(
    qwen3: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing timed is asserted but that what is left is a part; memory is the same every time."""
    arguments = [f"policy={qwen3}", "turns=2,8", "prompt=8", "rounds=1", "chunk=16"]
    monkeypatch.setattr(sys, "argv", ["segments_bench", *arguments])
    assert main() == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out.splitlines()[-1])["rows"]
    assert [(r["way"], r["turns"]) for r in rows] == [
        (way, turns) for turns in (2, 8) for way in segments_bench.WAYS
    ]
    assert all(0 < r["tail_s"] <= r["learner_s"] for r in rows)
    peak = {(r["way"], r["turns"]): r["peak_bytes"] for r in rows}
    assert peak["sweep", 8] < peak["whole", 8]
    assert peak["sweep", 8] < peak["retain", 8]
    assert peak["whole", 8] > 2 * peak["whole", 2]
    assert len(captured.err.splitlines()) == 1 + len(rows)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("colour=red", "colour=red: no such key"),
        ("ways=replay", "ways=replay: there is whole, recompute, retain, sweep"),
        ("turns=4,x", "turns=x: take numbers of at least 1"),
        ("rounds=0", "rounds=0: take a number of at least 1"),
    ],
)
def test_a_mistake_is_one_line(
    argument: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["segments_bench", argument])
    assert main() == 2
    assert message in capsys.readouterr().err


def test_help_is_the_modules_docstring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["segments_bench", "--help"])
    assert main() == 0
    assert capsys.readouterr().out == f"{str(segments_bench.__doc__).strip()}\n"
