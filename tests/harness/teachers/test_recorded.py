"""Recorded scores are found by the tokens that they are of, and by nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harness.protocols import TeacherScores, Trajectory, UsageError
from harness.records import Records
from harness.teachers.protocol import ScoreRequest, TeacherError, check_scores
from harness.teachers.recorded import RecordedTeacher

TOKENS, MASK = [9, 8, 1, 2, 7, 3, 4, 5], [0, 0, 1, 1, 0, 1, 1, 1]


def record(folder: Path, scores: TeacherScores | None) -> Path:
    records = Records(folder)
    records.trajectory(
        Trajectory(
            "0-0",
            "t",
            "easy",
            0,
            0,
            0,
            tokens_T=TOKENS,
            action_mask_T=MASK,
            behaviour_logprobs_T=[0.0] * 8,
            teacher=scores,
        )
    )
    records.close()
    return folder / "trajectories.jsonl"


def ask(file: Path, *requests: ScoreRequest) -> list[TeacherScores]:
    async def body() -> list[TeacherScores]:
        teacher = RecordedTeacher(file)
        await teacher.start()
        return [await teacher.score(request) for request in requests]

    return asyncio.run(body())


SCORES = TeacherScores(
    [-0.1, -0.2, -0.3, -0.4, -0.5], [[n, n + 1] for n in range(5)], [[-1.0, -2.0]] * 5
)


def test_each_turn_has_its_own_scores(tmp_path: Path):
    file = record(tmp_path, SCORES)
    first, second = ScoreRequest("x", TOKENS[:4], 2, 1.0), ScoreRequest("x", TOKENS, 5, 1.0, 2)
    found = ask(file, first, second)
    assert found[0] == TeacherScores([-0.1, -0.2])
    assert found[1] == TeacherScores(
        [-0.3, -0.4, -0.5], [[2, 3], [3, 4], [4, 5]], [[-1.0, -2.0]] * 3
    )
    for request, scores in zip((first, second), found, strict=True):
        check_scores(request, scores)


def test_fewer_of_the_likeliest_may_be_asked_for_but_not_more(tmp_path: Path):
    file = record(tmp_path, SCORES)
    fewer, more = [ScoreRequest("x", TOKENS[:4], 2, 1.0, k) for k in (1, 3)]
    found = ask(file, fewer, more)
    assert found[0].top_tokens_NK == [[0], [1]]
    check_scores(fewer, found[0])
    with pytest.raises(TeacherError, match="2 likeliest tokens of a place where 3"):
        check_scores(more, found[1])


@pytest.mark.parametrize(
    "request_",
    [
        ScoreRequest("x", [9, 8, 1, 3], 2, 1.0),
        ScoreRequest("x", TOKENS[:4], 3, 1.0),
        ScoreRequest("x", TOKENS[:3], 2, 1.0),
    ],
    ids=["other_token", "other_start", "other_end"],
)
def test_other_tokens_have_no_scores_and_waiting_does_not_help(
    request_: ScoreRequest, tmp_path: Path
):
    with pytest.raises(TeacherError, match="no scores of these tokens") as caught:
        ask(record(tmp_path, SCORES), request_)
    assert caught.value.final


def test_a_trajectory_that_was_lost_half_scored_has_its_first_turn(tmp_path: Path):
    file = record(tmp_path, TeacherScores([-0.1, -0.2]))
    (found,) = ask(file, ScoreRequest("x", TOKENS[:4], 2, 1.0))
    assert found.logprobs_N == [-0.1, -0.2]
    with pytest.raises(TeacherError):
        ask(file, ScoreRequest("x", TOKENS, 5, 1.0))


def test_a_recording_without_scores_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"take the trajectories\.jsonl of a run of objective=opd"):
        ask(record(tmp_path, None))
