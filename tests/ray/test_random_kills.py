"""Twenty kills at random: replicas, hosts of sandboxes, ranks, whole nodes. Nothing hangs, and what
a run counts in the end is what the rule says. `-s` shows the figures."""

from __future__ import annotations

import csv
import json
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
UPDATES, AT_ONCE = 8, 4  # of a run; trajectories under way
ENDS_S = 300.0  # a run that has to end does so within
QUIET_S = 900.0  # as long as nothing happens, it hangs
LOSES = {  # what a kill can cost
    "engine": ("engine", "node"),
    "exec_transport": ("sandboxes", "node"),
    "start": ("sandboxes", "node"),
}


def lost(job: Any) -> list[dict[str, Any]]:
    return [line for line in job.lines() if line["infrastructure_error"] is not None]


def _attempt(line: dict[str, Any]) -> int:
    return line["attempt"]


def check_dropped(job: Any) -> int:
    """A group is dropped where the last try of a trajectory was lost, and only there."""
    last = {(line["group"], line["index"]): line for line in sorted(job.lines(), key=_attempt)}
    with (job.folder / "updates.csv").open() as file:
        rows = list(csv.DictReader(file))
    for_good = {
        group for (group, _), line in last.items()
        if line["infrastructure_error"] is not None and group < len(rows) * 2
    }  # fmt: skip
    assert all(line["attempt"] % 3 == 2 for line in last.values() if line["group"] in for_good
               and line["infrastructure_error"] is not None)  # fmt: skip
    assert sum(int(row["groups_dropped"]) for row in rows) == len(for_good)
    return len(for_good)


def check_lost(job: Any, kills: list[str]) -> None:
    """No more than what a kill finds under way, and of its kind. `kills`: all of the run's."""
    for kind, count in Counter(line["infrastructure_error"] for line in lost(job)).items():
        might = sum(name.startswith(LOSES[kind]) for name in kills)
        assert count <= AT_ONCE * might, (kind, count, kills)


def test_twenty_random_kills(tmp_path: Path, jobs, nodes, add_node) -> None:
    draw = random.Random("kills on ray")
    made = [TARGETS[n % len(TARGETS)] for n in range(KILLS)]  # each kind, in any order
    draw.shuffle(made)
    settings = (
        *jobs.SMALL, *jobs.TWO_ENGINES, *jobs.TWO_RANKS, f"cluster.address={nodes.address}",
        "schedule=stream", "checkpoint.every=1", f"budget.limit={UPDATES}",
    )  # fmt: skip
    began_s, quiet_s = time.monotonic(), 0.0
    figures = {name: Counter[str]() for name in ("kills", "lost", "ends")}
    # Of the run in this folder, over all of its processes; `batches` that it lost.
    number, batches, kills = 0, 0, list[str]()

    def show(**more: Any) -> None:
        said = {name: dict(counts) for name, counts in figures.items()} | more
        print(json.dumps(said | {"s": round(time.monotonic() - began_s)}), flush=True)

    def ended(job: Any) -> bool:
        """Whether the run has finished; else it ended by a rule, which it says."""
        nonlocal batches
        code, heard = job.process.returncode, job.heard
        if code == 0:
            jobs.check_account(job, tries=3 * (1 + batches))
            check_lost(job, kills)
            assert job.summary["updates"] == UPDATES
            figures["lost"].update(line["infrastructure_error"] for line in lost(job))
            figures["ends"]["groups dropped"] += check_dropped(job)
            figures["ends"]["finished"] += 1
            return True
        assert code == 1, heard
        why = [line for line in heard.splitlines() if line.startswith("error: ")]
        assert len(why) == 1 and "Traceback" not in heard, heard
        rank, batch = "learner/" in why[0], "lost a trajectory for good" in why[0]
        assert rank or batch, heard
        assert not rank or any(k.name.startswith(("learner", "node")) for k in job.kills), heard
        figures["ends"]["rank lost" if rank else "batch lost"] += 1
        batches += batch
        return False

    job = jobs.Job.start(tmp_path / "0", *settings)
    while made:
        seen, more, since_s = len(job.lines()), draw.randrange(1, 4), time.monotonic()
        while job.process.poll() is None and len(job.lines()) < seen + more:
            quiet_s = max(quiet_s, time.monotonic() - since_s)
            assert quiet_s < QUIET_S, f"it hangs: {job.heard[-2000:]}"
            time.sleep(0.1)
        if job.process.poll() is None:
            time.sleep(draw.uniform(0.0, 0.5))
            target = made.pop()
            if target == "node":
                job.note(target)
                nodes.remove_node(draw.choice(list(nodes.worker_nodes)), allow_graceful=False)
                add_node()
            elif not job.kill(target):  # it ended just before
                made.append(target)
                continue
            kills.append(target)
            figures["kills"][target.partition("/")[0]] += 1
            show(run=number, lines=len(job.lines()), whole=job.kills[-1].whole)
            if target.startswith("learner"):
                code = job.wait(ENDS_S)
                assert code == 1 or job.kills[-1].lines == len(job.lines()), job.heard
            continue
        if finished := ended(job):
            number, batches, kills = number + 1, 0, []
        job = jobs.Job.start(tmp_path / str(number), *settings, resume=not finished)
    job.wait(2 * QUIET_S)
    while not ended(job):
        job = jobs.Job.start(tmp_path / str(number), *settings, resume=True)
        job.wait(2 * QUIET_S)
    show(longest_quiet_s=round(quiet_s))
