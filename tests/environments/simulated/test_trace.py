"""Lives of a recording: what its lines say, in the recording's groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from environments.protocols import UsageError
from environments.simulated.trace import TraceWorkload
from environments.simulated.workload import Limits, make_workload
from environments.simulated.workload_config import WorkloadConfig

LIMITS = Limits(10, 32, 640)


def line(group: int, index: int, **changes: Any) -> dict[str, Any]:
    """A life of two turns: 10 tokens read, 3 made, 5 read, 2 made."""
    turn = {"started_s": 1.5, "generated_s": 2.0, "finished_s": 2.75, "exec_s": 0.7,
            "action_start": 10, "action_end": 13}  # fmt: skip
    last = {"started_s": 2.75, "generated_s": 2.9, "finished_s": 2.9, "exec_s": 0.0,
            "action_start": 18, "action_end": 20}  # fmt: skip
    return {
        "batch": 0, "group": group, "index": index, "reward": 1.0, "infrastructure_error": None,
        "difficulty": "easy", "end": "submit", "sandbox_start_s": 0.5, "verify_s": 0.2,
        "finished_s": 3.0, "reward_s": 3.4, "tokens": 20, "turns": [turn, last], **changes,
    }  # fmt: skip


def trace(folder: Path, *lines: dict[str, Any]) -> TraceWorkload:
    file = folder / "trajectories.jsonl"
    file.write_text("".join(json.dumps(x) + "\n" for x in lines))
    workload = make_workload(WorkloadConfig(trace=str(file)), LIMITS)
    assert isinstance(workload, TraceWorkload)
    return workload


def test_a_recorded_life_is_replayed_as_it_was(tmp_path: Path) -> None:
    plan = trace(tmp_path, line(0, 0)).plan(5, 0, 0, 0)
    assert [tuple(turn) for turn in plan.turns] == [(3, 5, 0.75), (2, 0, 0.0)]
    assert (plan.prompt_tokens, plan.start_s, plan.reward, plan.end) == (10, 0.5, 1.0, "submit")
    # From its last turn until its reward, not the verifier's run alone.
    assert plan.verify_s == pytest.approx(0.5)
    assert plan.difficulty == "easy"


def test_groups_keep_their_lives_and_start_over_at_the_end(tmp_path: Path) -> None:
    workload = trace(
        tmp_path, line(3, 0), line(3, 1, reward=0.0), line(1, 0, reward=0.5),
        line(2, 0, reward=None), line(4, 0, infrastructure_error="image", reward=None),
    )  # fmt: skip
    assert len(workload) == 2
    rewards = [[workload.plan(0, g, i, 0).reward for i in (0, 1)] for g in (0, 1, 2)]
    assert rewards == [[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]]


def test_broken_traces_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no trajectory"):
        trace(tmp_path, line(0, 0, reward=None))
    with pytest.raises(UsageError, match="line 2 is no trajectory"):
        trace(tmp_path, line(0, 0), {"group": 1})
    with pytest.raises(UsageError, match="give a file"):
        make_workload(WorkloadConfig(trace=str(tmp_path / "none")), LIMITS)
