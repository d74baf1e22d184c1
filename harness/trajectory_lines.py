"""A trajectory as one line of trajectories.jsonl, and back.

Lossless and compact: tokens whole, the action mask as spans, log-probabilities of generated tokens
only.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.lengths import Mask, extend, mask_of
from harness.outcomes import failure
from harness.protocols import TeacherScores, Trajectory, Turn, UsageError, VersionSpan

_PLAIN = (
    "trajectory_id", "task_id", "difficulty", "group", "index", "seed", "attempt", "reward", "end",
    "infrastructure_error", "started_s", "sandbox_start_s", "finished_s", "reward_s", "verify_s",
)  # fmt: skip


def _spans(mask_T: list[int]) -> list[list[int]]:
    """[start, end) of each run of ones."""
    edges = [t for t, (a, b) in enumerate(zip([0, *mask_T], [*mask_T, 0], strict=True)) if a != b]
    return [list(pair) for pair in zip(edges[::2], edges[1::2], strict=True)]


def encode(trajectory: Trajectory) -> dict[str, Any]:
    """The JSON object of a trajectory. Times are seconds on the run's clock."""
    if (counted := mask_of(trajectory)) is not None:
        return _encode_counted(trajectory, counted)
    mask_T = trajectory.action_mask_T
    return {
        **{name: getattr(trajectory, name) for name in _PLAIN},
        "failure": failure(trajectory),
        "tokens": len(trajectory.tokens_T),
        "action_tokens": trajectory.action_tokens,
        "version_spans": [[s.version, s.start, s.end] for s in trajectory.version_spans],
        "turns": [dataclasses.asdict(turn) for turn in trajectory.turns],
        "report": dict(trajectory.report),
        "token_ids": trajectory.tokens_T,
        "action_spans": _spans(mask_T),
        "behaviour_logprobs": [
            value
            for value, mask in zip(trajectory.behaviour_logprobs_T, mask_T, strict=True)
            if mask
        ],
        **({"rewritten_at": trajectory.rewritten_at} if trajectory.rewritten_at else {}),
        **(
            {}
            if trajectory.teacher is None
            else {"teacher": dataclasses.asdict(trajectory.teacher)}
        ),
    }


def _encode_counted(trajectory: Trajectory, mask: Mask) -> dict[str, Any]:
    """Without the tokens, which there are none of; a run may have a hundred thousand of these."""
    return {
        **{name: getattr(trajectory, name) for name in _PLAIN},
        "failure": failure(trajectory),
        "tokens": len(mask),
        "action_tokens": trajectory.action_tokens,
        "version_spans": [(s.version, s.start, s.end) for s in trajectory.version_spans],
        "turns": [
            {  # as dataclasses.asdict would have it
                "action_start": turn.action_start,
                "action_end": turn.action_end,
                "started_s": turn.started_s,
                "generated_s": turn.generated_s,
                "finished_s": turn.finished_s,
                "exec_s": turn.exec_s,
                "exit_code": turn.exit_code,
                "timed_out": turn.timed_out,
                "out_of_memory": turn.out_of_memory,
            }
            for turn in trajectory.turns
        ],
        "report": dict(trajectory.report),
        "action_spans": mask.spans,
    }


def decode(line: dict[str, Any]) -> Trajectory:
    """The trajectory behind a line; what `encode` was given."""
    if "token_ids" not in line:
        return _decode_counted(line)
    length = len(line["token_ids"])
    mask_T, logprobs_T = [0] * length, [0.0] * length
    behaviour = iter(line["behaviour_logprobs"])
    for start, end in line["action_spans"]:
        for t in range(start, end):
            mask_T[t], logprobs_T[t] = 1, next(behaviour)
    return Trajectory(
        **{name: line[name] for name in _PLAIN},
        tokens_T=line["token_ids"],
        action_mask_T=mask_T,
        behaviour_logprobs_T=logprobs_T,
        version_spans=[VersionSpan(*span) for span in line["version_spans"]],
        turns=[Turn(**turn) for turn in line["turns"]],
        report=line["report"],
        teacher=TeacherScores(**line["teacher"]) if "teacher" in line else None,
        rewritten_at=line.get("rewritten_at", []),
    )


def _decode_counted(line: dict[str, Any]) -> Trajectory:
    trajectory = Trajectory(
        **{name: line[name] for name in _PLAIN},
        version_spans=[VersionSpan(*span) for span in line["version_spans"]],
        turns=[Turn(**turn) for turn in line["turns"]],
        report=line["report"],
    )
    place = 0
    for start, end in [*line["action_spans"], (line["tokens"], line["tokens"])]:
        extend(trajectory, start - place, generated=False)
        extend(trajectory, end - start, generated=True)
        place = end
    return trajectory


def read(path: Path) -> Iterator[tuple[Trajectory, dict[str, Any]]]:
    """(trajectory, its whole line) in file order. A last line cut short by a crash is left out;
    any other broken line raises UsageError."""
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            if not text.endswith("\n"):
                return
            try:
                line = json.loads(text)
                yield decode(line), line
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(
                    f"replay={path}: line {number} is no trajectory ({error}); "
                    "take a trajectories.jsonl of this version"
                ) from error
