"""One real main job per schedule, shared by the tests that look at what it leaves."""

from __future__ import annotations

import collections
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

# Small, and yet whole: real sandboxes, real gradients, a real MLflow store.
RECORDED = Path(__file__).parents[1] / "thundersync" / "data" / "recorded.jsonl.gz"
SMALL = ("experiment=smoke", "sandbox=bubblewrap")


@dataclass(frozen=True)
class Job:
    """A finished `python -m harness.run`."""

    folder: Path
    store: str
    closing: dict[str, Any]
    stderr: str

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())


def run_job(where: Path, *overrides: str, path: Path | None = None) -> Job:
    """Run the main job in a process of its own; fails the test unless it ends with exit 0."""
    folder, store = where / "run", f"sqlite:///{where}/mlflow.db"
    environment = os.environ | ({"PYTHONPATH": str(path)} if path is not None else {})
    done = subprocess.run(
        [
            sys.executable, "-m", "harness.run", *SMALL, *overrides,
            f"hydra.run.dir={folder}", f"tracking.uri={store}",
        ],
        cwd=where, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Job(folder, store, json.loads(done.stdout.splitlines()[-1]), done.stderr)


@pytest.fixture(scope="session", name="run_job")
def run_job_fixture() -> Callable[..., Job]:
    return run_job


@pytest.fixture(scope="session")
def small_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trajectories.jsonl of two batches alike: three groups of four, their delays a tenth of what
    they were."""
    path = tmp_path_factory.mktemp("recording") / "trajectories.jsonl"
    with gzip.open(RECORDED, "rt") as file, path.open("w") as out:
        lines = [line for line in map(json.loads, file) if line["index"] < 4]
        for line in lines:
            line["sandbox_start_s"] *= 0.1
            line["reward_s"] = line["finished_s"] + 0.1 * (line["reward_s"] - line["finished_s"])
            for turn in line["turns"]:
                turn["exec_s"] *= 0.1
        for batch in range(2):
            out.writelines(json.dumps(line | {"batch": batch}) + "\n" for line in lines)
    return path


def _once(factory: pytest.TempPathFactory, name: str, *overrides: str) -> Job:
    """The job of this name, run by whichever of the session's processes wants it first: their
    folders are below one."""
    base = factory.getbasetemp()
    where = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"job-{name}"
    told = where / "job.json"
    with FileLock(f"{where}.lock"):
        if not told.exists():  # one that failed is tried, and fails, again
            shutil.rmtree(where, ignore_errors=True)
            where.mkdir()
            job = run_job(where, *overrides)
            told.write_text(json.dumps([str(job.folder), job.store, job.closing, job.stderr]))
    folder, *more = json.loads(told.read_text())
    return Job(Path(folder), *more)


@pytest.fixture(scope="session")
def stream_job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    parity = ("parity.every=1", "parity.permutations=2")
    return _once(tmp_path_factory, "stream", "schedule=stream", *parity)


@pytest.fixture(scope="session")
def sync_job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return _once(tmp_path_factory, "sync", "schedule=sync", "evaluation.marks=[0.5,0.9]")


def check_trace(trace: dict[str, Any]) -> None:
    """Chrome's JSON trace format as Perfetto reads it: every event on a named track of a named
    process; a track's slices in order of time, one inside another or apart; arrows of one start and
    one finish, each bound to a slice that is there at its moment. Returns nothing, asserts."""
    events = trace["traceEvents"]
    assert {e["ph"] for e in events} <= set("MXisf")
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    tracks = [(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"]
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert len(tracks) == len(set(tracks)) and len(names) == len(set(names))
    assert {pid for pid, _ in tracks} == processes
    slices: dict[tuple[int, int], list[tuple[float, float]]] = collections.defaultdict(list)
    arrows: dict[str, dict[int, Any]] = {"s": {}, "f": {}}
    for e in events:
        if e["ph"] == "M":
            continue
        assert (e["pid"], e["tid"]) in tracks, e
        if e["ph"] == "X":
            assert e["dur"] >= 0, e
            slices[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
        elif e["ph"] in arrows:
            assert e["id"] not in arrows[e["ph"]], e
            arrows[e["ph"]][e["id"]] = e
    within_us = 5e-4  # half of the last digit: the end of a slice is a sum of floats
    for track, found in slices.items():
        starts = [start for start, _ in found]
        assert starts == sorted(starts), track
        open_: list[float] = []
        for start, end in sorted(found, key=lambda s: (s[0], -s[1])):
            while open_ and open_[-1] <= start + within_us:
                open_.pop()
            assert not open_ or end <= open_[-1] + within_us, (track, start, end)
            open_.append(end)
    assert arrows["s"].keys() == arrows["f"].keys()
    for number, leaves in arrows["s"].items():
        arrives = arrows["f"][number]
        assert arrives["bp"] == "e" and arrives["ts"] >= leaves["ts"]
        assert (arrives["cat"], arrives["name"]) == (leaves["cat"], leaves["name"])
        for e in (leaves, arrives):
            at, there = e["ts"], slices[e["pid"], e["tid"]]
            assert any(start <= at < end for start, end in there), e


@pytest.fixture(scope="session", name="check_trace")
def check_trace_fixture() -> Callable[[dict[str, Any]], None]:
    return check_trace
