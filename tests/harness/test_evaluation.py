"""An evaluation's figures from what became of its samples, and how they are told."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import pty
from typing import Any, cast

import pytest

from harness import evaluate as program
from harness.clock import WallClock
from harness.composition import compose
from harness.display import print_closing_table, print_evaluation
from harness.evaluation import Evaluation, evaluate
from harness.protocols import InfrastructureError, Task, Trajectory, TrajectoryLost
from harness.records import blank_summary, finite

TASKS = [Task(name, "eval", "easy", {}) for name in ("a", "b", "c")]
# Task -> its samples' rewards; None is lost. c has pass@1 only of one sample.
REWARDS = {"a": [1.0, 1.0, 0.0], "b": [0.0, 0.0, 0.0], "c": [None, 1.0, None]}


class Told:
    """Rollouts that come out as the table says."""

    def __init__(self, rewards: dict[str, list[float | None]]) -> None:
        self._rewards = rewards
        self.seeds: dict[tuple[str, int], int] = {}

    async def run(
        self, task: Task, group: int, index: int, seed: int, emit: Any, label: str
    ) -> Trajectory | None:
        self.seeds[task.task_id, index] = seed
        reward = self._rewards[task.task_id][index]
        trajectory = Trajectory(f"{label}{group}-{index}", task.task_id, "easy", group, index, seed)
        trajectory.reward = reward
        if reward is None:
            emit(TrajectoryLost(trajectory, "start", final=True))
            return None
        return trajectory


def measured(
    rewards: dict[str, list[float | None]], label: str = ""
) -> tuple[Evaluation, dict[tuple[str, int], int], list[str]]:
    """The evaluation, its seeds, and the ids of what was recorded."""

    async def body() -> tuple[Evaluation, dict[tuple[str, int], int], list[str]]:
        rollouts, recorded = Told(rewards), []
        found = await evaluate(
            cast(Any, rollouts), WallClock(), TASKS, 3, 1234, label,
            lambda trajectory: recorded.append(trajectory.trajectory_id),
        )  # fmt: skip
        return found, rollouts.seeds, recorded

    return asyncio.run(body())


def test_figures_by_hand():
    """Rates 2/3, 0 and 1; pass@2 and pass@3 of a and b alone."""
    found, _, recorded = measured(REWARDS)
    assert found.solve_rate == pytest.approx(5 / 9)
    variance = ((2 / 3 - 5 / 9) ** 2 + (5 / 9) ** 2 + (1 - 5 / 9) ** 2) / 2
    assert found.standard_error == pytest.approx((variance / 3) ** 0.5)
    assert found.pass_at_k == {1: pytest.approx(5 / 9), 2: 0.5, 3: 0.5}
    assert (found.tasks, found.samples_per_task, found.lost, len(recorded)) == (3, 3, 2, 7)


def test_every_phase_draws_the_same_seeds():
    _, before, ids = measured(REWARDS, "initial-")
    _, after, _ = measured(REWARDS, "mark-0.5-")
    assert before == after
    assert len(set(before.values())) == 9
    assert all(name.startswith("initial-") for name in ids)


def test_nothing_judged_is_an_error_and_no_solve_rate():
    with pytest.raises(InfrastructureError, match="all 9 samples were lost"):
        measured({task.task_id: [None] * 3 for task in TASKS})


def line() -> dict[str, Any]:
    found, _, _ = measured(REWARDS)
    return program.report(compose(["agent=nop"]), found, {"start": 2})


def test_a_program_gets_one_json_line(capsys: pytest.CaptureFixture[str]):
    program.show(line())
    said = json.loads(capsys.readouterr().out)
    assert said["pass_at_k"] == {"1": pytest.approx(5 / 9), "2": 0.5, "3": 0.5}
    assert (said["agent"], said["tasks"], said["samples_per_task"], said["lost"]) == (
        "nop",
        3,
        3,
        2,
    )


def test_a_person_gets_a_table_of_eighty_columns():
    stream = io.StringIO()
    wide = line() | {"pass_at_k": {k: 1 - 0.5**k for k in range(1, 101)}}
    print_evaluation(wide, stream)
    text = stream.getvalue()
    assert "55.6% +- " in text
    assert "pass@2 75.0%, pass@4 93.8%" in text
    assert "pass@64 100.0%, pass@100 100.0%" in " ".join(text.replace("|", " ").split())
    assert "pass@3 " not in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_terminal_gets_the_table(monkeypatch: pytest.MonkeyPatch):
    ours, theirs = pty.openpty()
    with open(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        program.show(line())
        monkeypatch.undo()
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the terminal's other end is closed
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    assert b"solve rate" in shown and b"{" not in shown


def test_the_closing_table_has_the_curve_and_what_was_discarded():
    summary = blank_summary(compose([]))
    points = [(0.25, 0.31), (0.5, 0.333), (0.75, None)]
    summary["accuracy"] |= {
        "curve": [{"mark": mark, "solve_rate": rate} for mark, rate in points],
        "pass_at_k": {"initial": None, "final": {1: 0.5, 2: 0.625}},
    }
    summary["budget"] |= {
        "warning": "WARNING: budget.limit=5 trajectories was spent before the first update",
        "discarded": {"trajectories": 5, "unfinished": 59, "tokens": 812, "seconds": 4.04},
    }
    stream = io.StringIO()
    print_closing_table(finite(summary), cast(Any, "summary.json"), stream)
    text = " ".join(stream.getvalue().replace("|", " ").split())
    assert "31.0% at 25%, 33.3% at 50%, - at 75%" in text
    assert "pass@2 62.5%" in text
    assert "of it no update: 5 trajectories and 59 unfinished, 812 tokens, 4.0 s" in text
    assert "WARNING: budget.limit=5 trajectories was spent before the first update" in text
    assert max(map(len, stream.getvalue().splitlines())) <= 80
