"""Twenty kills at random: replicas, hosts of sandboxes, ranks, whole nodes. Nothing hangs, and what
a run counts in the end is what the rule says."""

from __future__ import annotations

import csv
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(7200)]
KILLS = 20
TARGETS = (
    "engine/0", "engine/1", "sandboxes/0", "sandboxes/1", "learner/0", "learner/1", "node",
)  # fmt: skip
ENDS_S = 300.0  # a run that has to end does so within


def check_dropped(job: Any) -> None:
    """A group is dropped where a trajectory was lost three times, and only there."""
    lost: Counter[tuple[int, int]] = Counter()
    for line in job.lines():
        if line["infrastructure_error"] is not None:
            lost[line["group"], line["index"]] += 1
    for_good = {group for (group, _), times in lost.items() if times == 3}
    assert max(lost.values(), default=0) <= 3
    with (job.folder / "updates.csv").open() as file:
        rows = list(csv.DictReader(file))
    trained = len(rows) * 2
    assert sum(int(row["groups_dropped"]) for row in rows) == len(
        {group for group in for_good if group < trained}
    )


def test_twenty_random_kills(tmp_path: Path, jobs, nodes, add_node) -> None:
    draw = random.Random("kills on ray")
    made = [TARGETS[n % len(TARGETS)] for n in range(KILLS)]  # each kind, in any order
    draw.shuffle(made)
    settings = (
        *jobs.SMALL, *jobs.TWO_ENGINES, *jobs.TWO_RANKS, f"cluster.address={nodes.address}",
        "schedule=stream", "checkpoint.every=1", "budget.limit=8",
    )  # fmt: skip
    number = 0
    job = jobs.Job.start(tmp_path / "0", *settings)
    while made:
        seen, more = len(job.lines()), draw.randrange(1, 4)
        deadline = time.monotonic() + 900
        while job.process.poll() is None and len(job.lines()) < seen + more:
            assert time.monotonic() < deadline, f"it hangs: {job.said.read_text()[-2000:]}"
            time.sleep(0.1)
        if job.process.poll() is None:
            time.sleep(draw.uniform(0.0, 0.5))
            target = made.pop()
            if target == "node":
                node = draw.choice(nodes.worker_nodes)
                nodes.remove_node(node, allow_graceful=False)
                add_node()
                job.killed["sandboxes"] += 1
            else:
                job.kill(target)
            if target.startswith("learner"):
                assert job.wait(ENDS_S) == 1, job.said.read_text()
            continue
        ended = job.process.returncode
        if ended == 0:
            jobs.check_account(job)
            check_dropped(job)
            number += 1
        else:  # a rank was lost, alone or with its node, or a whole batch: by the rule
            said = job.said.read_text()
            assert ended == 1, said
            assert "learner/" in said or "lost a trajectory for good" in said, said
        job = jobs.Job.start(tmp_path / str(number), *settings, resume=ended != 0)
    ended = job.wait(1800)
    while ended == 1:
        job = jobs.Job.start(tmp_path / str(number), *settings, resume=True)
        ended = job.wait(1800)
    assert ended == 0, job.said.read_text()
    jobs.check_account(job)
    check_dropped(job)
    assert job.summary["updates"] == 8
