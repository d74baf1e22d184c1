"""What a command sees and what comes back of it."""

from __future__ import annotations

import asyncio
import time

import pytest


def test_output_and_exit_code(backend):
    async def body(sandbox):
        good = await sandbox.exec("echo out; echo err >&2; pwd", timeout_s=20)
        assert (good.output, good.exit_code) == ("out\nerr\n/testbed\n", 0)
        assert not good.timed_out and not good.out_of_memory and good.omitted_bytes == 0
        assert 0 < good.duration_s < 20
        assert (await sandbox.exec("exit 7", timeout_s=20)).exit_code == 7
        assert (await sandbox.exec("kill -TERM $$", timeout_s=20)).exit_code == 128 + 15

    backend.run(body)


def test_tools_and_identity(backend):
    async def body(sandbox):
        result = await sandbox.exec(
            "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x"
            " && git log --oneline | wc -l && echo a | sed s/a/b/ | grep b"
            " && python -c 'print(1)' && python3 -c 'import ssl, sqlite3, ctypes; print(2)'"
            " && id -u && grep CapEff /proc/self/status && grep NoNewPrivs /proc/self/status",
            timeout_s=20,
        )
        lines = result.output.split("\n")
        assert lines[:5] == ["1", "b", "1", "2", "65532"], result.output
        assert lines[5].split()[1] == "0000000000000000"
        assert lines[6].split()[1] == "1"

    backend.run(body)


def test_environment_is_the_spec_s_alone(backend, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", "leak")

    async def body(sandbox):
        result = await sandbox.exec("env; cat /proc/1/environ 2>/dev/null", timeout_s=20)
        assert "leak" not in result.output
        assert "TASK=x y" in result.output.split("\n")
        assert "HOME=/tmp" in result.output.split("\n")

    backend.run(body, environment={"TASK": "x y"})


def test_reading_standard_input_does_not_hang(backend):
    async def body(sandbox):
        result = await sandbox.exec("cat; read line; echo done", timeout_s=20)
        assert (result.output, result.timed_out) == ("done\n", False)

    backend.run(body)


def test_background_child_holds_nothing_up_and_lives_on(backend):
    # mv: a reader must not come between a file's opening, which empties it, and its writing.
    async def body(sandbox):
        started = time.monotonic()
        result = await sandbox.exec(
            "while :; do echo tick; date +%s%N > new; mv new beat; sleep 0.02; done & echo started",
            timeout_s=20,
        )
        assert result.output.startswith("started\n") or "started\n" in result.output
        assert time.monotonic() - started < 5
        first = await sandbox.exec("sleep 0.2; cat beat", timeout_s=20)
        second = await sandbox.exec("sleep 0.2; cat beat", timeout_s=20)
        assert first.output != second.output
        assert "tick" not in first.output + second.output

    backend.run(body)


def test_loud_background_child_neither_dies_nor_blocks(backend):
    async def body(sandbox):
        await sandbox.exec("(yes; echo $? > ended) & echo started", timeout_s=20)
        result = await sandbox.exec("sleep 0.5; ls; pgrep -c yes || jobs", timeout_s=20)
        assert "ended" not in result.output
        assert (await sandbox.exec("echo quick", timeout_s=20)).output == "quick\n"

    backend.run(body)


def test_timeout_kills_whatever_was_started(backend):
    command = """
        setsid bash -c 'trap "" TERM HUP INT
            while :; do date +%s%N > new; mv new beat; sleep 0.02; done' &
        (setsid sleep 1000 & disown) &
        python3 -c 'import os, time
if os.fork() == 0 and os.setsid() and os.fork() == 0: time.sleep(1000)' &
        sleep 0.3
        echo before
        sleep 1000
    """

    async def body(sandbox):
        result = await sandbox.exec(command, timeout_s=1.0)
        assert result.timed_out and result.exit_code is None
        assert result.output == "before\n"
        assert 1.0 <= result.duration_s < 10
        left = await sandbox.exec(
            "before=$(cat beat); sleep 0.2; [ $before = $(cat beat) ] && echo still;"
            " for f in /proc/[0-9]*; do tr '\\0' ' ' < $f/cmdline; echo; done",
            timeout_s=20,
        )
        assert left.output.startswith("still\n")
        assert "sleep 1000" not in left.output and "trap" not in left.output

    backend.run(body)


def test_who_stops_every_new_process_stops_commands_and_not_their_server(backend):
    """A background process that waits for the next ids: its own doing, within the time limit."""
    stopper = """
        cat > stopper.py <<'END'
import os, time
own = os.getpid()
while os.getppid() != 1:  # whoever starts it shall end first
    time.sleep(0.01)
open("ready", "w").write("yes")
while True:
    with open("/proc/loadavg") as file:
        last = int(file.read().split()[4])
    for pid in range(last - 2, last + 4):
        if pid not in (1, own):
            try:
                os.kill(pid, 19)
            except OSError:
                pass
END
        setsid python3 stopper.py > /dev/null 2>&1 &
    """

    async def body(sandbox):
        stopped = 0
        for _ in range(4):
            await sandbox.put({"ready": b""})
            await sandbox.exec(stopper, timeout_s=20)
            while not await sandbox.get("ready"):  # the server reads it: no process is begun
                await asyncio.sleep(0.02)
            began_s = time.monotonic()
            result = await sandbox.exec("echo on", timeout_s=1.0)
            assert time.monotonic() - began_s < 10
            assert result.timed_out or result.output == "on\n", result
            stopped += result.timed_out
            await sandbox.end_processes()
            assert (await sandbox.exec("echo on", timeout_s=20)).output == "on\n"
        assert stopped

    backend.run(body)


@pytest.mark.parametrize("count", [0, 1, 100, 101, 100_000])
def test_short_and_long_output_is_counted_exactly(backend, count):
    async def body(sandbox):
        result = await sandbox.exec(
            f"head -c {count} /dev/zero | tr '\\0' x", timeout_s=20, max_output_bytes=100
        )
        assert result.omitted_bytes == max(0, count - 100)
        assert result.output.count("x") == min(count, 100)

    backend.run(body)


def test_a_gigabyte_of_output_keeps_head_and_tail(backend):
    async def body(sandbox):
        result = await sandbox.exec(
            "echo HEAD; head -c 1000000000 /dev/zero; echo; echo TAIL",
            timeout_s=120,
            max_output_bytes=2000,
        )
        assert result.exit_code == 0 and not result.out_of_memory
        assert result.output.startswith("HEAD\n") and result.output.endswith("\nTAIL\n")
        assert result.omitted_bytes == 1_000_000_000 + len("HEAD\n\nTAIL\n") - 2000
        assert f"[... {result.omitted_bytes} bytes left out ...]" in result.output
        assert len(result.output) < 2200
        memory = await sandbox.exec("grep VmHWM /proc/1/status", timeout_s=20)
        assert int(memory.output.split()[1]) < 40_000  # kB, of the server

    backend.run(body)


def test_bytes_that_are_no_text(backend):
    async def body(sandbox):
        broken = await sandbox.exec(r"printf 'a\xff\xfeb\xe2\x82'", timeout_s=20)
        assert broken.output.startswith("a��b") and broken.exit_code == 0
        split = await sandbox.exec(
            r"printf '\xe2'; sleep 0.1; printf '\x82\xac'; printf '\033[31m\a\0'", timeout_s=20
        )
        assert split.output == "€\033[31m\a\0"
        odd = await sandbox.exec("echo 'ü\ud800'", timeout_s=20)
        assert odd.exit_code == 0 and "ü" in odd.output

    backend.run(body)


def test_cancelled_caller_leaves_the_exchange_in_step(backend):
    async def body(sandbox):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await sandbox.exec("sleep 0.6; echo first", timeout_s=20)
        assert (await sandbox.exec("echo second", timeout_s=20)).output == "second\n"

    backend.run(body)


def test_missing_workdir_is_said(backend):
    async def body(sandbox):
        result = await sandbox.exec("cd / && rmdir /testbed 2>/dev/null; echo ok", timeout_s=20)
        assert result.output == "ok\n"
        assert (await sandbox.exec("echo ok", timeout_s=20)).exit_code in (0, 126)

    backend.run(body)


def test_cpu_time_is_told_from_wall_time(backend):
    async def scenario(sandbox):
        spin = await sandbox.exec(f"python3 -c '{used_up}'", timeout_s=60)
        rest = await sandbox.exec("sleep 0.4", timeout_s=10)
        for timeout_s in (0.4, 2.0, 10.0):  # how long 0.1 s of a busy machine's processor takes
            cut = await sandbox.exec("while :; do :; done & sleep 30", timeout_s=timeout_s)
            if cut.cpu_s > 0.1:
                break
        return spin, rest, cut

    used_up = "import time\nwhile time.process_time() < 0.3: pass"
    spin, rest, cut = backend.run(scenario)
    assert rest.duration_s >= 0.4
    # One process spins; the shell beside it starts and ends, and the wall's clock is read before
    # those that were killed have been counted.
    beside_s = 0.05
    assert rest.cpu_s < 0.1 and 0.3 <= spin.cpu_s <= spin.duration_s + beside_s
    assert cut.timed_out and 0.1 < cut.cpu_s <= cut.duration_s + beside_s


def test_end_processes_leaves_nobody_and_the_sandbox_usable(backend):
    async def body(sandbox):
        await sandbox.exec("(trap '' TERM; while :; do :; done) & setsid sleep 99 &", timeout_s=20)
        await sandbox.end_processes()
        listed = await sandbox.exec("echo /proc/[0-9]*", timeout_s=20)
        return listed.output.split()

    assert len(backend.run(body)) == 2  # PID 1 and the shell that looks
