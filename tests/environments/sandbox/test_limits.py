"""What a hostile or broken command cannot do: to the host, and to the harness."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from environments.protocols import InfrastructureError

_MANY_CHILDREN = """
import os, time
for count in range(200):
    try:
        if os.fork() == 0:
            time.sleep(1)
            os._exit(0)
    except BlockingIOError:
        print('refused at', count)
        break
else:
    time.sleep(1)
"""


@pytest.mark.alone  # where looking at /proc is all that bounds it, thousands come to be
def test_fork_bomb_is_contained(limited_backend):
    async def body(sandbox):
        before = len(os.listdir("/proc"))
        result = await sandbox.exec("bomb() { bomb | bomb & }; bomb; sleep 1000", timeout_s=1.5)
        assert result.timed_out or result.exit_code == 137
        assert result.duration_s < 60  # to bury thousands takes a busy kernel its time
        after = await sandbox.exec("ls -d /proc/[0-9]* | wc -l", timeout_s=20)
        assert int(after.output) <= 5
        assert len(os.listdir("/proc")) < before + 200

    limited_backend.run(body)


def test_never_more_processes_than_allowed(limited_backend):
    async def body(sandbox):
        result = await sandbox.exec(
            f'python3 -c "{_MANY_CHILDREN}"',
            timeout_s=20,
        )
        assert "more than 64 processes" in result.output or "refused at" in result.output
        count = result.output.partition("refused at ")[2]
        assert not count or 50 < int(count) < 64

    limited_backend.run(body)


def test_memory_hog_is_contained(limited_backend):
    async def body(sandbox):
        result = await sandbox.exec(
            "python3 -c 'x = bytearray(2 << 30); x[::4096] = b\"1\" * (len(x) // 4096)'; echo $?",
            timeout_s=30,
        )
        killed = result.out_of_memory and "137" in result.output
        assert killed or "MemoryError" in result.output
        calm = await sandbox.exec("echo alive", timeout_s=20)
        assert (calm.output, calm.out_of_memory) == ("alive\n", False)

    limited_backend.run(body)


def test_the_kernel_prefers_every_process_of_a_command(backend):
    """From its first instruction on; not the server, which must outlive them."""
    here = Path("/proc/self/oom_score_adj").read_text().strip()
    tell = "read score < /proc/{}/oom_score_adj; echo $score"

    async def body(sandbox):
        for _ in range(30):  # bash may win or lose a race against the server
            result = await sandbox.exec(f"({tell.format('self')})", timeout_s=20)
            assert result.output == "1000\n"
        await sandbox.exec("sleep 60 >/dev/null 2>&1 &", timeout_s=20)  # then they start otherwise
        result = await sandbox.exec(f"{tell.format('self')}; {tell.format(1)}", timeout_s=20)
        command, server = result.output.split()
        assert command == "1000" and server in ("0", here)

    backend.run(body)


def test_memory_of_all_processes_counts(limited_backend):
    hogs = " & ".join(["python3 -c 'import time; x = bytearray(100 << 20); time.sleep(1.5)'"] * 4)

    async def body(sandbox):
        result = await sandbox.exec(f"{hogs} & wait", timeout_s=40)
        assert result.out_of_memory
        assert (await sandbox.exec("echo alive", timeout_s=20)).output == "alive\n"

    limited_backend.run(body)


def test_cpu_is_bounded(backend):
    loop = "import time; end = time.time() + 1.5\nwhile time.time() < end: pass\n"

    async def body(sandbox):
        result = await sandbox.exec(
            f"python3 -c '{loop}print(time.process_time())'",
            timeout_s=20,
        )
        assert float(result.output.split()[0]) < 0.8

    backend.run(body, cpus=0.25)


def test_scratch_is_bounded(backend):
    async def body(sandbox):
        result = await sandbox.exec("head -c 100M /dev/zero > big; du -m big", timeout_s=30)
        assert "No space left" in result.output
        with pytest.raises(InfrastructureError, match="disk"):
            await sandbox.put({"more": b"x" * (1 << 20)})

    backend.run(body)


def test_no_network(backend):
    async def body(sandbox):
        result = await sandbox.exec(
            "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 3)' 2>&1"
            " | tail -1; ls /sys/class/net 2>/dev/null; cut -d: -f1 /proc/net/dev | tail -n +3",
            timeout_s=20,
        )
        assert "Network is unreachable" in result.output
        assert set(result.output.split()[-1:]) == {"lo"}

    backend.run(body)


def test_no_privileges_can_be_gained(backend):
    """Set-user-id programs, raw sockets, devices, the clock, another root, the user 0."""
    attempts = {
        "setuid": "cp /bin/bash b && chmod 4755 b && ./b -p -c 'id -u' | grep -qx 0",
        "raw": "python3 -c 'import socket; socket.socket(2, socket.SOCK_RAW, 1)'",
        "packet": "python3 -c 'import socket; socket.socket(17, socket.SOCK_RAW, 3)'",
        "device": "mknod disk b 8 0",
        "clock": "date -s 2020-01-01",
        "chroot": "chroot / true",
        "user": "python3 -c 'import os; os.setuid(0)'",
        "group": "python3 -c 'import os; os.setgroups([0])'",
        "mount": "mount -t tmpfs none /tmp",
        "interface": "python3 -c 'import fcntl, socket, struct; fcntl.ioctl(socket.socket(),"
        ' 0x8914, struct.pack("16sh", b"lo", 0))\'',
    }

    async def body(sandbox):
        for name, command in attempts.items():
            tried = f"command -v {command.split()[0]} >/dev/null || echo MISSING; {command}"
            result = await sandbox.exec(f"({tried}) 2>&1 && echo GAINED", timeout_s=20)
            assert "GAINED" not in result.output and "MISSING" not in result.output, name
            assert (
                any(
                    word in result.output
                    for word in ("not permitted", "ermission", "denied", "superuser")
                )
                or name == "setuid"
            ), (name, result.output)

    backend.run(body)


def test_host_files_are_out_of_reach(backend, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("f3a9-only-on-the-host")
    home = Path.home()

    async def body(sandbox):
        result = await sandbox.exec(
            f"cat {secret} /etc/shadow; ls -A {home} {Path.cwd()} /home /var/run/docker.sock;"
            " ls /testbed /tmp; echo end",
            timeout_s=20,
        )
        assert secret.read_text() not in result.output and "root:x" not in result.output
        assert ".git" not in result.output and ".ssh" not in result.output
        assert ".bash" not in result.output and result.output.endswith("end\n")

    backend.run(body)


def test_nothing_outside_the_workspace_can_be_written(backend):
    async def body(sandbox):
        result = await sandbox.exec(
            "for d in / /usr /usr/bin /etc /run /sys /dev /var /root; do"
            "   touch $d/planted 2>/dev/null && echo WROTE $d; done;"
            " find /proc/sys /proc/sysrq-trigger /proc/irq /proc/bus /sys -writable"
            "   -not -type l 2>/dev/null;"
            " echo core > /proc/sys/kernel/core_pattern;"
            " mount -t tmpfs none /tmp; echo end",
            timeout_s=20,
        )
        assert "WROTE" not in result.output
        assert [line for line in result.output.split("\n") if line.startswith("/")] == []
        assert result.output.endswith("end\n")

    backend.run(body)
    assert not Path("/usr/bin/planted").exists()


def test_read_only_binds(backend, tmp_path):
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:3]:
        if parent.owner() == tmp_path.owner() and parent != Path("/tmp"):
            parent.chmod(0o755)  # pytest's folders are private; a bind is read by another user
    (tmp_path / "data").write_text("given")

    async def body(sandbox):
        result = await sandbox.exec("cat /given/deep/er/data; touch /given/deep/er/x", timeout_s=20)
        assert result.output.startswith("given") and "Read-only" in result.output

    backend.run(body, read_only_binds={str(tmp_path): "/given/deep/er"})


def test_agent_cannot_reach_the_server(backend):
    async def body(sandbox):
        result = await sandbox.exec(
            "echo garbage > /proc/1/fd/1; cat /proc/1/mem; ls /proc/self/fd | wc -l;"
            " kill -INT 1; kill -STOP 1; kill -TERM 1; kill -9 1; kill -9 -1; echo end",
            timeout_s=20,
        )
        assert result.output.count("Permission denied") == 2
        assert result.output.endswith("4\nend\n") or "\n4\n" in result.output
        assert (await sandbox.exec("echo alive", timeout_s=20)).output == "alive\n"
        # What the server ignores its commands do not, started either way.
        for command in ("kill -INT $$; echo on", "sleep 9 & kill -INT $$; echo on"):
            assert (await sandbox.exec(command, timeout_s=20)).exit_code == 130
        assert (await sandbox.exec("kill -INT $$; echo on", timeout_s=20)).exit_code == 130

    backend.run(body)


def test_agent_that_ends_its_own_sandbox_has_itself_to_blame(backend):
    async def body(sandbox):
        result = await sandbox.exec(
            "prlimit --pid 1 --as=1048576; head -c 50000000 /dev/zero; sleep 5", timeout_s=20
        )
        assert (result.exit_code, result.output) == (None, "[sandbox shell killed]")
        assert await sandbox.exec("echo alive", timeout_s=20) == result

    started = time.monotonic()
    backend.run(body)
    assert time.monotonic() - started < 20
