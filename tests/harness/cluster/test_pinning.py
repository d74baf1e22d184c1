"""Engine and learner get cores that are there, whichever those are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness.cluster.pinning import cores
from harness.composition import compose
from harness.protocols import UsageError
from harness.validation import validate


def affinity(monkeypatch: pytest.MonkeyPatch, *there: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(there))


def test_the_cores_are_those_of_this_process(monkeypatch):
    affinity(monkeypatch, 7, 3, 5, 9)
    config = compose(["cluster.pin_cores=true", "schedule.learner_devices=2"])
    assert cores(config) == ([3], [5, 7])
    assert cores(compose([])) == (None, None)


def test_cores_that_are_not_there_are_a_usage_error(monkeypatch):
    affinity(monkeypatch, 3, 5)
    config = compose(["cluster.pin_cores=true", "schedule.engine_devices=2"])
    with pytest.raises(UsageError) as raised:
        validate(config)
    assert str(raised.value) == (
        "cluster.pin_cores=true: schedule.engine_devices=2 and schedule.learner_devices=1 need 3 "
        "cores, there is 3, 5; take fewer devices, or cluster.pin_cores=false"
    )


def test_a_run_on_one_core_says_so_in_one_line(tmp_path):
    """As a process, bound to one core that need not be the first."""
    core = max(os.sched_getaffinity(0))
    code = f"import os, runpy; os.sched_setaffinity(0, {{{core}}}); "
    code += "runpy.run_module('harness.run', run_name='__main__', alter_sys=True)"
    done = subprocess.run(
        [sys.executable, "-c", code, "cluster.pin_cores=true"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: cluster.pin_cores=true")
    assert f"need 2 cores, there is {core};" in line
    assert not list(tmp_path.iterdir())
