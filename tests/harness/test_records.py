"""A run's folder: rows, lines and JSON files that other programs read."""

from __future__ import annotations

import csv
import json
import math
import struct
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.composition import compose
from harness.manifest import manifest
from harness.protocols import TeacherScores, Trajectory, Turn, UsageError, VersionSpan
from harness.records import SCHEMA_PATH, Records, blank_summary, finite
from harness.trajectory_lines import decode, encode, read


def _float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def _trajectory(mask_T: list[int]) -> Trajectory:
    return Trajectory(
        "u0g1i2", "mini__1", "hard", group=1, index=2, seed=99, attempt=1,
        tokens_T=list(range(len(mask_T))), action_mask_T=mask_T,
        behaviour_logprobs_T=[_float32(-0.1 * (t + 1)) * m for t, m in enumerate(mask_T)],
        version_spans=[VersionSpan(3, 0, len(mask_T))],
        turns=[Turn(0, 2, 1.0, 1.5, 2.0, 0.25, 0)],
        reward=1.0, end="submit", report={"resolved": True}, started_s=0.5, reward_s=3.0,
    )  # fmt: skip


@given(mask_T=st.lists(st.integers(0, 1), max_size=40))
def test_a_trajectory_survives_its_line(mask_T: list[int]) -> None:
    trajectory = _trajectory(mask_T)
    assert decode(json.loads(json.dumps(encode(trajectory)))) == trajectory


def test_a_teacher_s_scores_survive_their_line_bit_for_bit() -> None:
    scored = _trajectory([0, 1, 1])
    scored.teacher = TeacherScores([-0.1, _float32(-7.3)], [[3, 1], [0, 2]], [[-0.1, -2.5]] * 2)
    assert decode(json.loads(json.dumps(encode(scored)))) == scored


def test_trajectories_are_read_back_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for number in range(2):
        records.trajectory(_trajectory([0, 1, 1]), phase="train", update=number, advantage=math.nan)
    records.close()
    path = tmp_path / "trajectories.jsonl"
    path.write_text(path.read_text() + '{"trajectory_id": "cut')
    found = list(read(path))
    assert [line["update"] for _, line in found] == [0, 1]
    assert found[0][0] == _trajectory([0, 1, 1])
    assert found[0][1]["advantage"] is None


def test_a_broken_line_names_the_file_and_the_line(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"token_ids": [1]}\n')
    with pytest.raises(UsageError, match=r"replay=.*t\.jsonl: line 1"):
        list(read(tmp_path / "t.jsonl"))


def test_updates_are_on_disk_row_by_row(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.update({"update": 1, "reward/mean": 0.5})
    records.update({"update": 2, "reward/mean": math.inf})
    rows = list(csv.DictReader((tmp_path / "updates.csv").open()))
    assert rows == [
        {"update": "1", "reward/mean": "0.5"},
        {"update": "2", "reward/mean": ""},
    ]
    with pytest.raises(ValueError, match="surprise"):
        records.update({"update": 3, "surprise": 1})
    records.close()


@pytest.mark.parametrize("schedule", ["sync", "stream"])
def test_a_blank_summary_has_the_schema_s_shape(schedule: str, tmp_path: Path) -> None:
    summary = blank_summary(compose([f"schedule={schedule}", "tracking=none"]))
    Records(tmp_path).summary(summary | {"status": "interrupted"})
    written = json.loads((tmp_path / "summary.json").read_text())
    jsonschema.validate(written, json.loads(SCHEMA_PATH.read_text()))
    assert list(tmp_path.iterdir()) == [tmp_path / "summary.json"]


def test_what_is_not_finite_never_reaches_json(tmp_path: Path) -> None:
    assert finite({"a": [math.nan, (1.0, -math.inf)], "b": 2}) == {"a": [None, [1.0, None]], "b": 2}
    Records(tmp_path).manifest({"x": math.nan})
    assert json.loads((tmp_path / "manifest.json").read_text()) == {"x": None}


def test_the_manifest_tells_what_to_run_again(tmp_path: Path) -> None:
    config = compose(["seed=7"])
    Records(tmp_path).manifest(manifest(config, data={"mini": "sha256:00"}))
    written = json.loads((tmp_path / "manifest.json").read_text())
    assert written["config"]["rollout"]["group_size"] == config.rollout.group_size
    assert written["seeds"]["run"] == 7
    assert written["versions"]["torch"] is not None
    assert written["data"] == {"mini": "sha256:00"}
    assert written["hardware"]["cores"] >= 1
