"""A harness killed with SIGKILL again and again: the next start leaves nothing of it."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from environments.sandbox.options import ProviderOptions
from environments.sandbox.select import open_provider

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(2400)]
_PROGRAM = str(Path(__file__).with_name("lives_program.py"))


class Harness:
    """The program with its lives first..last, `parallel` at once."""

    def __init__(self, address: str, image: str, first: int, last: int, parallel: int) -> None:
        numbers = [str(number) for number in (first, last, parallel)]
        command = [sys.executable, _PROGRAM, address, image, *numbers]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def lines(self):
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.split()

    def kill_after(self, wait_s: float) -> None:
        threading.Timer(wait_s, self._process.kill).start()

    def end(self) -> int:
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.wait()


def open_and_close(address: str, image: str) -> dict[str, int]:
    """The next start; returns what it has removed."""

    async def scenario():
        provider = await open_provider(
            "docker",
            image=image,
            run_id="next",
            max_parallel=1,
            options=ProviderOptions(hosts=(address,)),
        )
        await provider.close()
        return provider.reaped

    return asyncio.run(scenario())


def test_200_lives_one_by_one_and_32_at_once_with_20_kills(own_engine, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "thundersync-bwrap.999999999.1.left").mkdir()
    draw = random.Random(5)
    at_rest = own_engine.counts()
    begun_s = time.monotonic()
    killed = left_by_kills = reaped = 0
    rewards: dict[int, str] = {}

    def see_the_next_start() -> None:
        nonlocal left_by_kills, reaped
        left_by_kills += own_engine.counts()["containers"]
        reaped += open_and_close(own_engine.address, own_engine.volume_image)["containers"]
        assert own_engine.counts() == at_rest
        assert not list(tmp_path.glob("thundersync*"))

    doomed = sorted(draw.sample(range(200), 10))
    first = 0
    while first < 200:
        victim = next((number for number in doomed if number >= first), None)
        harness = Harness(own_engine.address, own_engine.volume_image, first, 200, 1)
        for what, number, *rest in harness.lines():
            if what == "begin" and int(number) == victim:
                harness.kill_after(draw.uniform(0.0, 1.5))
            if what == "end":
                rewards[int(number)] = rest[0]
        code = harness.end()
        if victim is None:
            assert code == 0
            break
        assert code == -9
        killed += 1
        see_the_next_start()
        first = max(victim, *rewards) + 1
    alone_s = time.monotonic() - begun_s

    for _ in range(10):
        harness = Harness(own_engine.address, own_engine.volume_image, 1000, 1032, 32)
        lines = harness.lines()
        next(lines)  # the first has begun
        harness.kill_after(draw.uniform(0.0, 4.0))
        for what, number, *rest in lines:
            if what == "end":
                rewards[int(number)] = rest[0]
        assert harness.end() == -9
        killed += 1
        see_the_next_start()
    whole = Harness(own_engine.address, own_engine.volume_image, 2000, 2032, 32)
    at_once = [line[2] for line in whole.lines() if line[0] == "end"]
    assert (whole.end(), at_once) == (0, ["1.0"] * 32)
    at_once_s = time.monotonic() - begun_s - alone_s

    print(
        f"{killed} kills in {alone_s:.0f} s of lives one by one and {at_once_s:.0f} s of 32 at "
        f"once; {len(rewards)} lives ended; {left_by_kills} containers were left by the kills, "
        f"the next starts removed {reaped}; now {own_engine.counts()}"
    )
    assert killed == 20 and reaped > 0 and left_by_kills > 0
    assert own_engine.counts() == at_rest == dict.fromkeys(at_rest, 0)
    assert set(rewards.values()) == {"1.0"}
    assert len(rewards) >= 190
