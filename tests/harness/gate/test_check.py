"""`python -m harness.check` as it is called: its exit codes, and what it says moved."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.check import REFERENCE
from harness.gate.alternate import alternated, ratio
from harness.gate.rehearsal import Rehearsal, ScheduleWork

JOB = "virtual/stream_reward/"


def run(*arguments: str, cwd: Path) -> tuple[int, list[str], str]:
    """(exit code, what moved, standard error)."""
    done = subprocess.run(
        [sys.executable, "-m", "harness.check", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    moved = json.loads(done.stdout.splitlines()[-1])["moved"] if done.stdout else []
    return done.returncode, moved, done.stderr


def test_it_names_what_moved_and_an_update_settles_it(tmp_path: Path) -> None:
    """A last digit that differs, a figure that is gone and one that is new; what is not looked at
    stays as it is."""
    content: dict[str, Any] = json.loads(REFERENCE.read_text())
    figures, path = content["figures"], tmp_path / "ci.json"
    other = {name: entry for name, entry in figures.items() if not name.startswith(JOB)}
    figures[f"{JOB}time.per_update_s"]["value"] *= 1 + 1e-9
    del figures[f"{JOB}idle.engine"]
    figures[f"{JOB}time.gone_s"] = {"value": 1.0, "rule": "exact", "unit": "s"}
    path.write_text(json.dumps(content))
    asked = (f"only={JOB}", f"reference={path}")

    code, moved, _ = run(*asked, cwd=tmp_path)
    assert code == 1
    assert [line.split(":")[0].removeprefix(JOB) for line in moved] == [
        "idle.engine", "time.gone_s", "time.per_update_s"
    ]  # fmt: skip
    code, moved, said = run(*asked, "--update", cwd=tmp_path)
    assert (code, moved) == (0, [])
    assert said.count("moved: ") == 3
    written = json.loads(path.read_text())["figures"]
    assert written == json.loads(REFERENCE.read_text())["figures"]
    assert {n: e for n, e in written.items() if not n.startswith(JOB)} == other


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("only=nothing",), "error: only=nothing: no figure begins so; there is: virtual/sync,"),
        (("reference=missing.json",), "error: reference=missing.json: "),
        (("judge=never",), "error: judge=never: give quiet (the default) or always"),
        (("speed=1",), "error: speed=1: no such setting; there is: reference, only, judge, before"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    code, _, said = run(*arguments, cwd=tmp_path)
    assert code == 2
    assert said.startswith(says) and said.count("\n") == 1


def test_the_quickest_rounds_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two slices a round, at 3 and 1 + 2 units; every third round something else is at work."""
    order: list[str] = []
    now_s, round_ = 0.0, -1

    def make() -> list[Any]:
        nonlocal round_
        round_ += 1
        slow = 10.0 if round_ % 3 == 0 else 1.0

        def side(name: str, seconds: float) -> Any:
            def work() -> None:
                nonlocal now_s
                order.append(name)
                now_s += seconds * slow

            return work

        return [(side("a", 6.0), side("b", 1.0)), (side("a", 3.0), side("b", 2.0))]

    monkeypatch.setattr("harness.gate.alternate.time.thread_time", lambda: now_s)
    assert ratio(make, 8, 4) == pytest.approx(3.0)
    assert order[4:12] == ["a", "b", "b", "a", "b", "a", "a", "b"]
    assert [len(slice_s) for side in alternated(make, 2) for slice_s in side] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("overrides", "verbs"),
    [
        (("schedule=sync",), {"accumulate"}),
        (("schedule=one_step_off",), {"accumulate"}),
        (("schedule=async_4",), {"accumulate"}),
        (("schedule=stream",), {"capture", "fold", "accumulate"}),
        (("schedule=stream", "schedule.release=submit"), {"capture", "commit", "fold"}),
    ],
)  # fmt: skip
def test_a_rehearsed_schedule_trains_on_every_trajectory_that_counts(
    overrides: tuple[str, ...], verbs: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measured play is a whole one: each group is learnt once, by the schedule's own verbs."""
    work = ScheduleWork(overrides, 2)
    work.prepare()
    seen: list[str] = []
    learner: Any = work.rehearsal.learner
    for name in ("accumulate", "capture", "commit", "fold", "drop", "discard"):
        verb = getattr(learner, name)

        def told(*given: Any, name: str = name, verb: Any = verb) -> Any:
            seen.append(name)
            return verb(*given)

        monkeypatch.setattr(learner, name, told)
    work.play()
    assert verbs <= set(seen)
    assert isinstance(work.rehearsal, Rehearsal) and work.rehearsal.version == 2
