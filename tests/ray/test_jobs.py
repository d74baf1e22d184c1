"""Whole runs on a Ray cluster of their own: what they leave, and what real kills cost them."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1800)]


def test_fully_sharded_ranks_and_two_engines(tmp_path: Path, jobs) -> None:
    """FSDP2 over two actors, weights as one object to two replicas; gradients within the control of
    the synchronous ones; nothing is left."""
    job = jobs.Job.start(
        tmp_path, *jobs.SMALL, *jobs.TWO_ENGINES, *jobs.TWO_RANKS, "learner.parallel=fsdp",
        "cluster.publication=object", "schedule=stream", "budget.limit=2", "parity.every=1",
        "parity.permutations=2",
    )  # fmt: skip
    job.until(lambda: len(job.actors()) == 5)
    processes = jobs.processes(job)
    assert job.wait(1200) == 0, job.said.read_text()
    jobs.check_nothing_left(tmp_path, processes)
    summary = job.summary
    assert (summary["status"], summary["cluster"], summary["updates"]) == ("finished", "ray", 2)
    assert summary["parity"]["gradient_relative_error_max"] < 1e-5
    assert summary["ledger"]["ranks"] == 2
    assert summary["staleness"]["max"] == 0  # both replicas had each update's weights
    assert 0.0 < summary["idle"]["engine"] < 1.0 and 0.0 < summary["idle"]["learner"] < 1.0
    jobs.check_account(job)
    text = (job.folder / "timeline.json").read_text()
    assert all(f'"{name}"' in text for name in ("engine/0", "engine/1", "learner/0", "learner/1"))


def test_killed_replicas_and_hosts_cost_retries_and_a_signal_leaves_nothing(
    tmp_path: Path, jobs
) -> None:
    job = jobs.Job.start(
        tmp_path, *jobs.SMALL, *jobs.TWO_ENGINES, "schedule=async", "budget.limit=100000"
    )

    def lost(kind: str) -> int:
        return sum(line["infrastructure_error"] == kind for line in job.lines())

    job.until(lambda: len(job.lines()) >= 2)
    for name, kinds in (("engine/1", ("engine",)), ("sandboxes/0", ("exec_transport", "start"))):
        before = sum(map(lost, kinds))
        while sum(map(lost, kinds)) == before:  # one that was idle costs nothing
            assert job.kill(name)
            now = len(job.lines())
            job.until(lambda now=now: len(job.lines()) >= now + 3)
    processes = jobs.processes(job)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(120) == 143, job.said.read_text()
    jobs.check_nothing_left(tmp_path, processes)
    assert job.summary["status"] == "interrupted"
    said = job.said.read_text()
    assert "Traceback" not in said
    assert "engine/1: the actor ended" in said and "it is started again" in said
    jobs.check_account(job)


def test_a_killed_driver_leaves_no_process_and_the_next_start_its_files(
    tmp_path: Path, jobs
) -> None:
    settings = (*jobs.SMALL, "schedule=sync", "checkpoint.every=1", "budget.limit=2")
    job = jobs.Job.start(tmp_path, *settings)
    job.until(lambda: len(job.lines()) >= 5)  # in the second update
    driver, *others = jobs.processes(job)
    (left,) = Path("/tmp").glob(f"thundersync-ray.{driver.pid}.*")
    assert (left / "session_latest").exists()
    driver.kill()
    assert job.wait(30) == -signal.SIGKILL
    # Ray's agents try for a minute to tell a cluster that is gone of its end, and then go.
    _, alive = psutil.wait_procs(others, timeout=180)
    assert alive == []
    again = jobs.Job.start(tmp_path, *settings, resume=True)
    again.until(lambda: not left.exists())
    assert again.wait(600) == 0, again.heard
    jobs.check_account(again)
    assert [f for p in others for f in (tmp_path / "tmp").glob(f"thundersync-*.{p.pid}.*")] == []


def test_a_lost_rank_ends_the_run_which_goes_on_to_the_same_weights(
    tmp_path: Path, jobs, small_recording: Path
) -> None:
    """Two ranks with sharded ledgers; the tokens are a recording's, so that runs can be compared
    to the bit: with one that nothing happened to, on the local cluster."""
    settings = (
        *jobs.SMALL, *jobs.TWO_RANKS, "ledger.sharded=true", "schedule=sync", "checkpoint.every=1",
        f"replay={small_recording}", "rollout.group_size=4", "rollout.groups_per_batch=3",
        "budget.limit=3",
    )  # fmt: skip
    local = [s for s in settings if not s.startswith("cluster")]
    whole = jobs.Job.finish(tmp_path / "whole", *local)
    job = jobs.Job.start(tmp_path / "killed", *settings)
    job.until(lambda: len(job.lines()) >= 14)  # in the second update
    processes = jobs.processes(job)
    assert job.kill("learner/1")
    assert job.wait(120) == 1, job.said.read_text()
    jobs.check_nothing_left(tmp_path / "killed", processes)
    said = [x for x in job.said.read_text().splitlines() if "learner/1: the actor ended" in x]
    assert len(said) == 1 and said[0].startswith("error: ")
    assert "; go on from checkpoint update-" in said[0] and f"resume={job.folder}" in said[0]
    assert "Traceback" not in job.said.read_text()
    again = jobs.Job.finish(tmp_path / "killed", *settings, resume=True)
    assert "going on from update-" in again.said.read_text()
    assert again.weights == whole.weights
    known = ("trajectory_id", "reward", "token_ids", "attempt")
    lines = [[{k: line[k] for k in known} for line in j.lines()] for j in (again, whole)]
    assert sorted(lines[0], key=str) == sorted(lines[1], key=str)
