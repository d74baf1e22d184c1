"""A rank that dies or raises ends the verb at once, with its cause, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from harness.cluster.local import WorkerEnded, WorkerError
from harness.config import Config
from harness.protocols import UsageError
from harness.records import SCHEMA_PATH

AT_ONCE_S = 15.0  # of a collective's ten minutes; a loaded machine needs some


@pytest.fixture
def ranks(start, make_config) -> Iterator[Any]:
    """Two ranks of their own, which a test may break."""
    learner = start(make_config(2))
    folder = Path(learner.client._rendezvous).parent
    assert list(folder.iterdir()) == []  # where ranks met is gone
    yield learner
    started_s = time.monotonic()
    processes = [psutil.Process(p) for p in learner.client.pids if psutil.pid_exists(p)]
    learner.wait(learner.client.close())
    assert time.monotonic() - started_s < AT_ONCE_S
    assert not any(p.is_running() for p in processes)


def test_the_death_of_a_rank_is_named_though_its_peer_fails_too(ranks):
    started_s = time.monotonic()
    with pytest.raises(WorkerEnded, match=r"learner/1: the worker process ended \(exit code -9\)"):
        ranks.ask("die_in_a_collective", 1)
    with pytest.raises(WorkerError, match=r"learner/1: the worker process ended"):
        ranks.wait(ranks.client.publish())
    assert time.monotonic() - started_s < AT_ONCE_S


def test_an_error_of_a_rank_does_not_wait_for_its_peer(ranks):
    """The peer hangs in a collective; closing ends it all the same."""
    started_s = time.monotonic()
    with pytest.raises(WorkerError, match=r"learner/1: ValueError: a row that cannot be scored"):
        ranks.ask("fail_in_a_collective", 1)
    assert time.monotonic() - started_s < AT_ONCE_S


def test_a_rank_that_cannot_start_keeps_nobody_waiting(start, make_config):
    """It says why; nobody waits in vain for it at the place where ranks meet."""
    config: Config = make_config(2)
    config.policy.lora.rank, config.policy.lora.targets = 2, ["no_such_layer"]
    with pytest.raises(UsageError, match=r"policy\.lora\.targets=no_such_layer"):
        start(config)


STREAM_ON_TWO = (
    "schedule=stream", "learner.ranks=2", "schedule.learner_devices=2",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [(), ("ledger.sharded=true",), ("learner.parallel=fsdp",)], ids=str
)
def test_the_main_job_on_two_ranks(run_job: Callable[..., Any], tmp_path: Path, layout):
    job = run_job(tmp_path, *STREAM_ON_TWO, *layout, "parity.every=1", "parity.permutations=2")
    summary = job.summary
    jsonschema.validate(summary, json.loads(SCHEMA_PATH.read_text()))
    assert summary["status"] == "finished"
    assert summary["updates"] == 2
    assert summary["ledger"]["ranks"] == 2
    assert summary["parity"]["gradient_relative_error_max"] < 1e-5
    names = {
        e["args"]["name"]
        for e in json.loads((job.folder / "timeline.json").read_text())["traceEvents"]
        if e["name"] == "thread_name"
    }
    assert {"learner/0", "learner/1"} <= names
    assert 0.0 < summary["idle"]["learner"] < 1.0
    assert [p.suffix for p in (job.folder / "checkpoints").iterdir()] == [".safetensors"]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a sandbox's, ended meanwhile
        return []


@pytest.mark.slow
@pytest.mark.parametrize("who", ["rank", "parent"])
def test_a_killed_rank_or_parent_leaves_nothing(tmp_path: Path, who: str):
    process = subprocess.Popen(
        [
            sys.executable, "-m", "harness.run", "experiment=smoke", "sandbox=bubblewrap",
            *STREAM_ON_TWO, "evaluation.initial=false", "evaluation.final=false",
            "budget.limit=100000", f"hydra.run.dir={tmp_path}/run", "tracking=none",
        ],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    recorded = tmp_path / "run" / "trajectories.jsonl"
    deadline_s = time.monotonic() + 120
    while not (recorded.exists() and recorded.stat().st_size):
        assert process.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.1)
    descendants = psutil.Process(process.pid).children(recursive=True)
    workers = [p for p in descendants if "harness.cluster.worker" in _command(p)]
    assert len(workers) == 3  # engine/0, learner/0, learner/1, in that order
    if who == "parent":
        process.kill()
        _, alive = psutil.wait_procs(workers, timeout=10)
        assert alive == []
        return
    last = max(workers, key=lambda p: p.pid)  # a moment is too short for their times to differ
    os.kill(last.pid, signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1, stderr
    assert "learner/1: the worker process ended (exit code -9)" in stderr
    _, alive = psutil.wait_procs(descendants, timeout=10)
    assert alive == []
