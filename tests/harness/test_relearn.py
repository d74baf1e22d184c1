"""What of a run's log of verbs is learnt again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.learner.log import LoggedLearner
from harness.protocols import TeacherScores, Trajectory, UsageError
from harness.relearn import play, verbs

ARGUMENTS = {
    "capture": {"ids": ["0-0"], "rewards": [1.0]},
    "fold": {"group": 0, "coefficients": {"0-0": [1.0, 0.5]}},
    "accumulate": {"ids": ["0-0"], "coefficients": [0.5]},
    "step": {"normaliser": 4.0, "gradient_norm": 0.1},
    "publish": {"version": 1},
}


def write(folder: Path, *names: str) -> Path:
    path = folder / "learner.jsonl"
    lines = [json.dumps({"verb": name, **ARGUMENTS[name]}) for name in names]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_an_update_that_was_never_published_is_left_out(tmp_path):
    """A time budget may end between the step and the publication: the run discarded that update."""
    path = write(tmp_path, "capture", "step", "publish", "capture", "fold", "step")
    assert [v["verb"] for v in verbs(path)] == ["capture", "step", "publish"]
    path = write(tmp_path, "accumulate", "step", "publish", "accumulate")
    assert [v["verb"] for v in verbs(path)] == ["accumulate", "step", "publish"]


@pytest.mark.parametrize("kept", [1, 30, -1])
def test_a_last_line_that_a_crash_cut_is_left_out(tmp_path, kept):
    path = write(tmp_path, "accumulate", "step", "publish", "capture")
    whole, last = path.read_text().splitlines(keepends=True)[:-1], json.dumps(ARGUMENTS["capture"])
    path.write_text("".join(whole) + last[:kept])
    assert [v["verb"] for v in verbs(path)] == ["accumulate", "step", "publish"]
    # Though it be a publication, and whole but for its end: what is cut is never played.
    path.write_text(path.read_text()[: -len(last[:kept])].rstrip("\n"))
    assert [v["verb"] for v in verbs(path)] == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"verb":"accum', "Invalid control character"),
        ("[1]", "no verb"),
        ('{"verb":"acumulate"}', "no verb"),
        ('{"verb":["step"]}', "no verb"),
        ('{"verb":"step","normaliser":4.0}', "step without gradient_norm"),
    ],
)
def test_any_other_bad_line_is_named(tmp_path, line, words):
    path = write(tmp_path, "accumulate", "step", "publish")
    path.write_text(f"{path.read_text()}{line}\n" + path.read_text())
    with pytest.raises(UsageError) as raised:
        list(verbs(path))
    assert str(raised.value).startswith(f"run={tmp_path}: line 4 of learner.jsonl cannot be played")
    assert words in str(raised.value)


@pytest.mark.parametrize("verb", ["accumulate", "capture"])
def test_a_trajectory_that_was_not_recorded_is_named(verb):
    learner = cast(Any, SimpleNamespace(accumulate=None, capture=None))  # never called
    with pytest.raises(UsageError, match=r"trajectories\.jsonl: 0-0 is learnt from and not in it"):
        asyncio.run(play(learner, {"verb": verb, **ARGUMENTS[verb]}, {}))


class _Heard:
    """A learner that writes down what a running trajectory's turns were handed over with."""

    def __init__(self) -> None:
        self.extended: list[tuple[int, list[float] | None]] = []

    async def turn_settings(self) -> None:
        return None

    async def extend(self, turns: Any) -> None:
        for trajectory, tokens in turns.values():
            teacher = trajectory.teacher
            self.extended.append((tokens, (teacher and list(teacher.logprobs_N)) or None))


def test_a_turn_is_played_with_the_scores_that_there_were_when_it_was_taken(tmp_path):
    """Passes wait for a teacher that is late: with all of its scores they would be other ones, and
    the last bits of the gradient with them."""
    trajectory = Trajectory("0-0", "task", "easy", 0, 0, 0, tokens_T=[0] * 9)
    heard, again = _Heard(), _Heard()
    path = tmp_path / "learner.jsonl"
    log = LoggedLearner(cast(Any, heard), path)

    async def run() -> None:
        await log.extend({0: (trajectory, 3)})  # none yet
        trajectory.teacher = TeacherScores([-1.0, -2.0])
        await log.extend({0: (trajectory, 6)})
        trajectory.teacher.extend(TeacherScores([-3.0, -4.0]))
        await log.extend({0: (trajectory, 9)})
        trajectory.teacher.extend(TeacherScores([-5.0]))
        await log.close()
        for line in path.read_text().splitlines():
            await play(cast(Any, again), json.loads(line), {"0-0": trajectory})

    asyncio.run(run())
    assert heard.extended == [(3, None), (6, [-1.0, -2.0]), (9, [-1.0, -2.0, -3.0, -4.0])]
    assert again.extended == heard.extended
    assert trajectory.teacher is not None and len(trajectory.teacher.logprobs_N) == 5
