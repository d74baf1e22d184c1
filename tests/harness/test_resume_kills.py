"""Real SIGKILLs of runs in virtual time, at random moments; these runs then go on."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.harness.killing import kill, lines, run, start

KILLS = 20
VIRTUAL = (
    "env=simulated", "workload=swebench_verified", "hardware=64xh100", "tracking=none",
    "rollout.groups_per_batch=8", "rollout.group_size=8", "budget.limit=24", "checkpoint.every=2",
    "env.failures={start: 0.02, parser: 0.02}",
)  # fmt: skip


def left(folder: Path) -> dict[str, Any]:
    """All that a virtual run leaves, but for the real seconds that it took."""
    summary = json.loads((folder / "summary.json").read_text())
    del summary["time"]["simulated_in_s"]
    names = ("updates.csv", "trajectories.jsonl", "timeline.json", "learner.jsonl")
    return {name: (folder / name).read_bytes() for name in names} | {"summary": summary}


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("schedule", ["sync", "stream", "async", "one_step_off"])
def test_random_kills_in_virtual_time(tmp_path: Path, schedule: str) -> None:
    """Five kills a schedule, twenty in all: each at a random moment of a run of its own or of one
    that had been killed before."""
    draw = random.Random(f"kills/{schedule}")
    whole = tmp_path / "whole"
    settings = (*VIRTUAL, f"schedule={schedule}")
    run(tmp_path, *settings, f"hydra.run.dir={whole}")
    total, killed, number = lines(whole), 0, 0
    while True:
        folder = tmp_path / f"killed-{number}"
        arguments = (*settings, f"hydra.run.dir={folder}", "resume=auto")
        if killed == KILLS // 4:
            run(tmp_path, *arguments)
        else:
            # What goes on is as far as it was; what is played again begins at nothing.
            part = 1 if schedule in ("async", "one_step_off") else 5
            more, delay_s = draw.randrange(total // part), draw.uniform(0.0, 0.1)
            if kill(start(tmp_path, *arguments), folder, more, delay_s):
                killed += 1
                continue
        assert left(folder) == left(whole)
        if killed == KILLS // 4:
            return
        number += 1  # it had ended before it was to be killed: another run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_sweep_goes_on_and_skips_what_had_finished(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    settings = ("-m", "schedule=sync,stream", *VIRTUAL, f"hydra.sweep.dir={sweep}")
    assert kill(start(tmp_path, *settings), sweep / "1_stream_0", lines_of_an_update() * 3, 0.0)
    written = (sweep / "0_sync_0" / "summary.json").stat().st_mtime_ns
    said = run(tmp_path, *settings, "resume=auto")
    assert "0_sync_0 has finished already: skipped" in said and "going on from update-" in said
    assert (sweep / "0_sync_0" / "summary.json").stat().st_mtime_ns == written
    run(tmp_path, *VIRTUAL, "schedule=stream", f"hydra.run.dir={tmp_path}/whole")
    assert left(sweep / "1_stream_0") == left(tmp_path / "whole")
    refused = start(tmp_path, *settings, f"resume={sweep}")
    assert b"a sweep has a folder for each job; take resume=auto" in refused.communicate()[1]
    assert refused.returncode == 1  # every job of a sweep runs, and all failed


def lines_of_an_update() -> int:
    return 64
