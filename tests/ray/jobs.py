"""Whole runs in processes of their own, and their actors by name."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import psutil

from harness.records import SCHEMA_PATH

SMALL = (
    "experiment=smoke", "sandbox=bubblewrap", "tracking=none", "evaluation.initial=false",
    "evaluation.final=false", "rollout.group_size=2", "rollout.groups_per_batch=2",
    "cluster=ray", "sandbox.max_parallel=8",
    "cluster.start_timeout_s=300",
)  # fmt: skip
TWO_ENGINES = ("engine.replicas=2", "schedule.engine_devices=2")
TWO_RANKS = ("learner.ranks=2", "schedule.learner_devices=2")
_STARTED = re.compile(r"(\S+/\d+): pid (\d+) on ")
STARTED: list[subprocess.Popen[str]] = []  # by the test that runs
_LOST = re.compile(r"^sandboxes/\d+: .*; it is started again", re.MULTILINE)
_BACK = re.compile(r"^sandboxes/\d+ serves again", re.MULTILINE)


@dataclass
class Kill:
    """`whole`: no host of sandboxes was on its way back from an earlier one; `lines` of
    trajectories had been written."""

    name: str
    whole: bool
    lines: int


@dataclass
class Job:
    """A run under way, or ended."""

    folder: Path
    process: subprocess.Popen[str]
    said: Path
    heard_from: int = 0
    kills: list[Kill] = field(default_factory=list)

    @classmethod
    def start(cls, where: Path, *overrides: str, resume: bool = False) -> Job:
        """It has a folder for temporary files of its own."""
        where.mkdir(parents=True, exist_ok=True)
        (where / "tmp").mkdir(exist_ok=True)
        folder, said = where / "run", where / "stderr.txt"
        given = f"resume={folder}" if resume else f"hydra.run.dir={folder}"
        heard_from = said.stat().st_size if said.exists() else 0
        with said.open("a") as err, (where / "stdout.txt").open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "harness.run", *overrides, given],
                cwd=where, stdout=out, stderr=err, text=True,
                env=os.environ | {"TMPDIR": str(where / "tmp")},
            )  # fmt: skip
        STARTED.append(process)
        return cls(folder, process, said, heard_from)

    @classmethod
    def finish(cls, where: Path, *overrides: str, limit_s: float = 900, **more: Any) -> Job:
        job = cls.start(where, *overrides, **more)
        assert job.wait(limit_s) == 0, job.said.read_text()
        return job

    def wait(self, limit_s: float) -> int:
        try:
            return self.process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"it hangs: {self.said.read_text()[-2000:]}") from None

    @property
    def heard(self) -> str:
        """What this process has said, not those before it in the same folder."""
        return self.said.read_bytes()[self.heard_from :].decode()

    def lines(self) -> list[dict[str, Any]]:
        """Of trajectories.jsonl, those that are whole."""
        path = self.folder / "trajectories.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(x) for x in text.splitlines(keepends=True) if x.endswith("\n")]

    def actors(self) -> dict[str, int]:
        """Name -> process, of those that live."""
        log = self.folder / "job.log"
        found = _STARTED.findall(log.read_text()) if log.exists() else []
        return {name: int(pid) for name, pid in found if psutil.pid_exists(int(pid))}

    def whole(self) -> bool:
        """Whether every host of sandboxes that was killed was missed, and is back."""
        lost = len(_LOST.findall(self.heard))
        return lost >= self._hosts_killed() and lost == len(_BACK.findall(self.heard))

    def _hosts_killed(self) -> int:
        return sum(kill.name.startswith(("sandboxes", "node")) for kill in self.kills)

    def note(self, name: str) -> None:
        """That it is about to be killed."""
        self.kills.append(Kill(name, self.whole(), len(self.lines())))

    def kill(self, name: str, limit_s: float = 300) -> bool:
        """SIGKILL to an actor's process, as soon as it is there; False where the run ends first."""
        deadline = time.monotonic() + limit_s
        while self.process.poll() is None:
            if (pid := self.actors().get(name)) is not None:
                self.note(name)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return True
                self.kills.pop()
            assert time.monotonic() < deadline, f"{name} did not come: {self.said.read_text()}"
            time.sleep(0.1)
        return False

    def host_losses(self) -> tuple[int, int]:
        """How many the run has to count at least and at most: it need not count one that was still
        starting, or one after its last trajectory."""
        last = len(self.lines())
        sure = [kill for kill in self.kills if kill.whole and kill.lines < last]
        least = sum(kill.name.startswith(("sandboxes", "node")) for kill in sure)
        return least, self._hosts_killed()

    def until(self, holds: Any, limit_s: float = 600) -> None:
        deadline = time.monotonic() + limit_s
        while not holds():
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < deadline, self.said.read_text()[-2000:]
            time.sleep(0.1)

    @property
    def summary(self) -> dict[str, Any]:
        summary = json.loads((self.folder / "summary.json").read_text())
        jsonschema.validate(summary, json.loads(SCHEMA_PATH.read_text()))
        return summary

    @property
    def weights(self) -> bytes:
        (path,) = (self.folder / "checkpoints").glob("weights-*.safetensors")
        return path.read_bytes()


def end_all() -> None:
    """What a test that failed has left running."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def check_account(job: Job, tries: int = 3) -> None:
    """The summary counts what the rule says: every attempt has its line, a loss its kind, a group
    is dropped where a trajectory was lost for good, and no sandbox is unaccounted for. `tries` of
    a trajectory: 3 more for each end of the run of a whole lost batch."""
    summary, lines = job.summary, job.lines()
    lost = [line for line in lines if line["infrastructure_error"] is not None]
    assert summary["trajectories_lost"] == len(lost)
    kinds = Counter(line["infrastructure_error"] for line in lost)
    counted = Counter(summary["infrastructure_errors"])
    assert counted.keys() <= {"engine", "exec_transport", "start"}
    assert counted >= kinds  # a verification that was made again is an error and no loss
    assert counted["engine"] == kinds["engine"]
    assert all(line["reward"] is None for line in lost)
    attempts: dict[tuple[int, int], list[int]] = {}
    for line in lines:
        attempts.setdefault((line["group"], line["index"]), []).append(line["attempt"])
        assert line["attempt"] < tries
    seeds = {(line["group"], line["index"], line["seed"]) for line in lines}
    assert len(seeds) == len(attempts)  # again with the same seed
    assert all(sorted(made) == list(range(len(made))) for made in attempts.values())
    boxes = summary["sandboxes"]
    assert boxes["created"] == boxes["removed"] + boxes["lost"] and boxes["leaked"] == 0
    least, most = job.host_losses()
    assert least <= boxes["engine_losses"] <= most


def processes(job: Job) -> list[psutil.Process]:
    """Of the run: its own first, then all that it has started."""
    own = psutil.Process(job.process.pid)
    return [own, *own.children(recursive=True)]


def check_nothing_left(where: Path, processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert alive == []
    assert list((where / "tmp").glob("thundersync*")) == []
    pids = {process.pid for process in processes}
    left = [path.name.split(".") for path in Path("/tmp").glob("thundersync-*.*")]
    assert [name for name in left if name[1].isdigit() and int(name[1]) in pids] == []
