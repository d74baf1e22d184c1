"""What is kept at a mark, and the order in which it is evaluated."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from harness import snapshots as module
from harness.budget import Budget
from harness.clock import WallClock
from harness.composition import compose
from harness.config import BudgetConfig
from harness.evaluation import Evaluation
from harness.protocols import UsageError
from harness.snapshots import Snapshots, keep
from harness.validation import validate


def curve(
    folder: Path,
    marks: list[float],
    published: list[int],
    final: bool = True,
    limit: int = 10,
    initial: Evaluation | None = None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """The curve of a run with updates at these spends, and what the engine was told in order."""
    folder.mkdir(exist_ok=True)
    budget = Budget(BudgetConfig("trajectories", limit), devices=1, clock=WallClock())
    kept = Snapshots(marks, folder)
    path, version = None, 0
    for version, spent in enumerate(published, 1):
        budget.counters.trajectories = spent
        budget.updated([])
        path = folder / f"weights-{version}"
        path.write_text(f"version {version}")
        kept.offer(budget, str(path), version)
        (folder / f"weights-{version - 1}").unlink(missing_ok=True)
    kept.end(budget, path and str(path), version)
    told: list[str] = []

    async def load(path: str, version: int) -> None:
        assert path == "first" if version == 0 else Path(path).read_text() == f"version {version}"
        told.append(f"load {version}")

    async def measure(phase: str) -> Evaluation:
        told.append(phase)
        return Evaluation(len(told) / 10, 0.01, 4, 2, lost=0, pass_at_k={1: 0.5, 2: 0.7})

    weights = path and str(path)
    points = asyncio.run(kept.evaluate(weights, version, final, load, measure, "first", initial))
    return points, told


def points(found: list[dict[str, Any]]) -> list[tuple[float, float, int, str]]:
    return [(p["mark"], p["spent"], p["version"], p["phase"]) for p in found]


def test_marks_are_evaluated_in_order_and_the_last_weights_after_them(tmp_path: Path):
    found, told = curve(tmp_path, [0.4, 0.7], [3, 6, 9])
    assert told == ["load 1", "mark-0.4", "load 2", "mark-0.7", "load 3", "final"]
    assert points(found) == [(0.4, 3, 1, "mark-0.4"), (0.7, 6, 2, "mark-0.7")]
    assert [p["solve_rate"] for p in found] == [0.2, 0.4]
    assert found[0]["pass_at_k"] == {1: 0.5, 2: 0.7}


def test_a_version_is_measured_once(tmp_path: Path):
    found, told = curve(tmp_path, [0.4, 0.5, 0.9, 0.95], [3, 9])
    assert told == ["load 1", "mark-0.4", "load 2", "final"]
    assert points(found) == [
        (0.4, 3, 1, "mark-0.4"), (0.5, 3, 1, "mark-0.4"),
        (0.9, 9, 2, "final"), (0.95, 9, 2, "final"),
    ]  # fmt: skip
    assert found[2]["solve_rate"] == found[3]["solve_rate"]


def test_a_mark_without_a_later_update_has_the_last_published_weights(tmp_path: Path):
    found, told = curve(tmp_path, [0.5], [4], final=False)
    assert told == ["mark-0.5"]  # the engine has them
    assert points(found) == [(0.5, 4, 1, "mark-0.5")]


def test_a_mark_before_the_first_update_has_the_first_weights(tmp_path: Path):
    """Measured once, where they were measured before training already."""
    found, told = curve(tmp_path / "a", [0.1, 0.2], [3, 9])
    assert told == ["load 0", "mark-0.1", "load 2", "final"]
    assert points(found) == [(0.1, 0, 0, "mark-0.1"), (0.2, 0, 0, "mark-0.1")]
    before = Evaluation(0.25, 0.01, 4, 2, lost=0, pass_at_k={})
    found, told = curve(tmp_path / "b", [0.1], [3, 9], initial=before)
    assert told == ["final"]
    assert points(found) == [(0.1, 0, 0, "initial")]
    assert found[0]["solve_rate"] == 0.25


def test_without_any_update_every_mark_has_the_first_weights(tmp_path: Path):
    found, told = curve(tmp_path, [0.5, 0.6], [])
    assert told == ["final"]
    assert points(found) == [(0.5, 0, 0, "final"), (0.6, 0, 0, "final")]


@pytest.mark.parametrize(("mark", "limit", "spent"), [(0.55, 100, 55), (0.07, 100, 7)])
def test_a_mark_is_reached_when_its_fraction_is_spent_to_the_bit(tmp_path, mark, limit, spent):
    """0.55 x 100 is 55.00000000000001 and 0.07 x 100 is 7.000000000000001."""
    found, _ = curve(tmp_path, [mark], [spent, spent + 1, limit], limit=limit)
    assert points(found)[0][1] == spent


def test_keeping_costs_no_copy_where_links_are_to_be_had(tmp_path: Path):
    source, target = tmp_path / "weights", tmp_path / "snapshot.safetensors"
    source.write_bytes(b"weights")
    keep(source, target)
    assert target.stat().st_ino == source.stat().st_ino
    source.unlink()  # as the learner does
    assert target.read_bytes() == b"weights"


def test_a_copy_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file system without links, and then a full one."""
    source, target = tmp_path / "weights", tmp_path / "snapshot.safetensors"
    source.write_bytes(b"weights")

    def no_link(*unused: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    def half(source: Path, target: Path) -> None:
        target.write_bytes(b"wei")
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(module.os, "link", no_link)
    keep(source, target)
    assert target.read_bytes() == b"weights"
    assert target.stat().st_ino != source.stat().st_ino
    target.unlink()
    monkeypatch.setattr(module.shutil, "copyfile", half)
    with pytest.raises(OSError, match="no space left"):
        keep(source, target)
    assert [f.name for f in tmp_path.iterdir()] == ["weights"]


@pytest.mark.parametrize("marks", ["[0]", "[1]", "[0.5,0.5]", "[0.5,0.25]", "[-0.1,0.5]", "[1.5]"])
def test_marks_are_fractions_in_order(marks: str):
    config = compose([f"evaluation.marks={marks}"])
    with pytest.raises(UsageError, match=r"evaluation\.marks=\[.*increasing order"):
        validate(config)
