"""A deliberate slow-down of 15 % fails the gate: the real command on a slower copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.gate.before import PACKAGES, ROOT

SLOWER = '''

def _slower(name, owner):
    """15 % more processor time in each call."""
    import functools, inspect, time

    work = getattr(owner, name)

    def spend(began_s):
        until_s = time.thread_time() + 0.15 * (time.thread_time() - began_s)
        while time.thread_time() < until_s:
            pass

    @functools.wraps(work)
    def slowed(*args, **kwargs):
        began_s = time.thread_time()
        result = work(*args, **kwargs)
        spend(began_s)
        return result

    @functools.wraps(work)
    async def slowed_coroutine(*args, **kwargs):
        began_s = time.thread_time()
        result = await work(*args, **kwargs)
        spend(began_s)
        return result

    setattr(owner, name, slowed_coroutine if inspect.iscoroutinefunction(work) else slowed)

'''
LEDGER = "".join(
    f'_slower("{verb}", GradientLedger)\n' for verb in ("capture", "commit", "fold")
)  # fmt: skip


def copied(tmp_path: Path) -> Path:
    """A clone whose one commit is this code as it is now."""
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    name = ("-c", "user.name=a test", "-c", "user.email=test@localhost")
    for command in (("init", "-q"), ("add", "."), (*name, "commit", "-q", "-m", "as it is")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def gate(copy: Path, only: str, *settings: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "harness.check", f"only={only}", *settings],
        cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)},
        capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1600)
@pytest.mark.parametrize(
    ("figure", "file", "slowed"),
    [
        ("speed/ledger", "thundersync/ledger.py", LEDGER),
        ("speed/engine", "harness/engines/torch_engine.py", '_slower("work", TorchEngine)\n'),
        ("speed/stream_reward", "thundersync/stream.py", '_slower("play", Stream)\n'),
        ("speed/async_4", "baselines/asynchronous.py", '_slower("run", Asynchronous)\n'),
    ],
)  # fmt: skip
def test_15_percent_more_work_moves_its_figure(
    figure: str, file: str, slowed: str, tmp_path: Path
) -> None:
    copy = copied(tmp_path)
    with (copy / file).open("a", encoding="utf-8") as code:
        code.write(SLOWER + slowed)
    exit_code, said = gate(copy, figure, "before=HEAD", "judge=always")
    assert exit_code == 1, said
    (line,) = [line for line in said.splitlines() if line.startswith("moved: ")]
    assert line.startswith(f"moved: {figure}: ") and "(+" in line


@pytest.mark.slow
def test_the_same_code_before_and_after_has_not_moved(tmp_path: Path) -> None:
    """On any machine: nothing here hangs on what the reference was measured with."""
    exit_code, said = gate(
        copied(tmp_path), "speed/clock,speed/sync", "before=HEAD", "judge=always"
    )
    assert exit_code == 0, said
    assert "2 figures, 0 moved" in said


@pytest.mark.slow
def test_a_schedule_that_waits_longer_moves_its_virtual_figures(tmp_path: Path) -> None:
    """`reward` that releases nothing before its group has closed."""
    copy = copied(tmp_path)
    hand = copy / "thundersync" / "hand.py"
    code = hand.read_text(encoding="utf-8")
    assert code.count('elif self.release == "reward":') == 1
    hand.write_text(code.replace('elif self.release == "reward":', "elif False:"))
    exit_code, said = gate(copy, "virtual/stream_")
    assert exit_code == 1, said
    assert "moved: virtual/stream_reward/time.per_update_s: " in said
    assert "moved: virtual/stream_submit/" not in said
