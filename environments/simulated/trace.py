"""The lives of a recorded run, as they were: replays a trajectories.jsonl in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from environments.protocols import UsageError
from environments.simulated.workload import Plan, Turns


def _tool_s(turn: dict[str, Any]) -> float:
    """From the action to the moment when the next one can be asked for; 0 without a command."""
    return turn["finished_s"] - turn["generated_s"] if turn["exec_s"] else 0.0


def recorded_plan(line: dict[str, Any]) -> Plan:
    """The life behind a line of trajectories.jsonl; a turn's observation ends where the next
    turn's action begins."""
    turns = line["turns"]
    starts = [turn["action_start"] for turn in turns]
    ends = [turn["action_end"] for turn in turns]
    reads = [b - a for a, b in zip(ends, [*starts[1:], *ends[-1:]], strict=True)]
    return Plan(
        prompt_tokens=starts[0] if starts else line["tokens"],
        turns=Turns(
            np.array([b - a for a, b in zip(starts, ends, strict=True)], dtype=np.int32),
            np.array(reads, dtype=np.int32),
            np.array([_tool_s(turn) for turn in turns], dtype=np.float64),
        ),
        start_s=line["sandbox_start_s"],
        # With what comes before and after: collecting its work, stopping its sandbox.
        verify_s=line["reward_s"] - turns[-1]["finished_s"] if line["end"] == "submit" else 0.0,
        reward=line["reward"],
        difficulty=line["difficulty"],
        end=line["end"],
    )


class TraceWorkload:
    """Groups of a recording by their place; a run of more groups starts over with the first. A
    trajectory that was lost, or whose reward is missing, is not replayed."""

    def __init__(self, path: str) -> None:
        self._groups: list[dict[int, Plan]] = []
        groups: dict[tuple[int, int], dict[int, Plan]] = {}
        file = Path(path).expanduser()
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"workload.trace={path}: {error.strerror}; give a file") from error
        for number, row in enumerate(text.splitlines(), start=1):
            try:
                line = json.loads(row)
                if line["reward"] is not None and line["infrastructure_error"] is None:
                    place = (line.get("batch") or 0, line["group"])
                    groups.setdefault(place, {})[line["index"]] = recorded_plan(line)
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(
                    f"workload.trace={path}: line {number} is no trajectory ({error!r}); give a "
                    "trajectories.jsonl of this version"
                ) from error
        self._groups = [groups[place] for place in sorted(groups)]
        if not self._groups:
            raise UsageError(f"workload.trace={path}: no trajectory with a reward in it")

    def __len__(self) -> int:
        """How many groups were recorded."""
        return len(self._groups)

    def plan(self, task_seed: int, group: int, index: int, attempt: int) -> Plan:
        """The recorded life at this place; of a smaller group, the one at index modulo its size."""
        lives = self._groups[group % len(self._groups)]
        return lives[index] if index in lives else lives[sorted(lives)[index % len(lives)]]

    def difficulty(self, task_seed: int) -> str:
        return next(iter(self._groups[task_seed % len(self._groups)].values())).difficulty
