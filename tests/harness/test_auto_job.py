"""A main job under `release=auto`: what it chose, why, and how much of the overlap it had."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from harness.overlap import run_efficiency
from harness.records import SCHEMA_PATH
from harness.summary import released


def test_every_decision_is_written_down(run_job, small_recording: Path, tmp_path: Path):
    job = run_job(
        tmp_path, f"replay={small_recording}", "schedule=stream", "schedule.release=auto",
        "rollout.group_size=4", "budget.limit=3",
    )  # fmt: skip
    summary = job.summary
    jsonschema.validate(summary, json.loads(SCHEMA_PATH.read_text()))
    with (job.folder / "updates.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["release"] == "group"
    assert rows[0]["release_why"].startswith("release=group to start with")
    for row in rows[1:]:
        assert row["release_why"].startswith(f"release={row['release']}: predicted seconds")
    for number, row in enumerate(rows, start=1):
        assert 0 < float(row["decide_s"]) < float(row["per_update_s"])
        decided = f"decided in {float(row['decide_s']):.3f} s"
        assert f"update {number}: {row['release_why']}; {decided}" in job.stderr
        last_s, star_s, sync_s, took_s = (
            float(row[c]) for c in ("rollout_s", "t_star_s", "t_sync_s", "t_s")
        )
        assert last_s <= star_s <= sync_s
        assert last_s <= took_s <= float(row["per_update_s"])
    decide_s = [float(row["decide_s"]) for row in rows]
    assert summary["time"]["decide_s"] == pytest.approx(sum(decide_s) / 3)
    assert summary["release"] == "auto"
    assert sum(summary["release_updates"].values()) == 3
    assert summary | released(rows) == summary
    assert job.closing["release_updates"] == summary["release_updates"]
    numbers = [{c: float(row[c]) for c in ("t_star_s", "t_sync_s", "t_s")} for row in rows]
    expected = run_efficiency(numbers)
    assert summary["overlap_efficiency"] == (expected and pytest.approx(expected))


@pytest.mark.parametrize(
    ("rungs", "chosen", "why"),
    [
        ("group submit submit group submit reward", "submit", 4),
        ("group submit reward reward submit group", "group", 5),  # a tie: the last
        ("group", "group", 0),
    ],
)
def test_the_rung_chosen_is_the_one_most_updates_were_played_at(rungs, chosen, why):
    rows = [
        {"release": rung, "release_why": f"because {n}"} for n, rung in enumerate(rungs.split())
    ]
    found = released(rows)
    assert (found["release_chosen"], found["release_why"]) == (chosen, f"because {why}")
    assert found["release_updates"] == {r: rungs.split().count(r) for r in rungs.split()}


def test_a_replay_of_another_shape_starts_nothing(small_recording: Path, tmp_path: Path):
    done = subprocess.run(
        [
            sys.executable, "-m", "harness.run", f"replay={small_recording}", "tracking=none",
            f"hydra.run.dir={tmp_path}/run",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "give rollout.group_size=4 rollout.groups_per_batch=3" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "run" / "manifest.json").exists()
