"""Agent and verifier as two users of one container: neither gains by the other."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from environments.protocols import InfrastructureError, Sandbox, Verdict
from environments.sandbox.leftovers import reap
from environments.sandbox.ownership import LABEL
from environments.terminal_bench.config import TerminalBenchConfig

pytestmark = pytest.mark.docker

SOLVED = "echo 42 > answer"
FORGE = "echo 1 > /logs/verifier/reward.txt"
# `raise` is root's and set-user-id, `capable` has every capability that the container knows.
DOCKERFILE = """\
FROM thundersync/mini:1
RUN echo judge:x:1001:1001::/home/judge:/bin/bash >>/etc/passwd
RUN echo judge:x:1001: >>/etc/group && echo extra:x:1500:agent,judge >>/etc/group
RUN mkdir -p /app /home/judge /opt && chown agent:agent /app && chown judge /home/judge
RUN cd /opt && cp /usr/bin/python3 raise && cp raise capable && chmod 4755 raise
RUN python3 -c "import os, struct; os.setxattr('/opt/capable', 'security.capability', \
struct.pack('<5I', 0x02000001, 0xeb, 0xeb, 0, 0))"
RUN touch /secret && chmod 600 /secret
WORKDIR /app
"""
UIDS = {"root": 0, "agent": 65532, "judge": 1001}
TEST_SH = """\
#!/bin/bash
[ "$(id -u)" = "$WHO" ] && [ "$HOME" = "$WHERE" ] && [ -w /tests ] || exit 9
if [ -e /app/program ]; then timeout 10 bash /app/program; fi
cd /tests && reward=$(python3 check.py)
sleep 0.1
echo "$reward" >/logs/verifier/reward.txt
"""
CHECK = """\
import json
try:
    print(int(open("/app/answer").read() == "42\\\\n"))
except OSError:
    print(0)
"""
USERS = [("agent", "root"), ("root", "judge"), ("agent", "judge")]
Make = Callable[..., Path]


@pytest.fixture(params=USERS, ids="-".join)
def users(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture
def make(make_task: Make) -> Make:
    """A task for two users; `/home/judge` is safe and a home in /tmp is not."""

    def task(users: tuple[str, str], test: str = TEST_SH, name: str = "answer") -> Path:
        agent, verifier = users
        home = {"root": "/root", "judge": "/home/judge", "agent": "/"}.get(verifier)
        toml = (
            'schema_version = "1.4"\n'
            "[environment]\nmemory_mb = 128\nstorage_mb = 32\nnetwork_mode = 'no-network'\n"
            f"[agent]\nuser = '{agent}'\n[verifier]\nuser = '{verifier}'\n"
            f"env = {{ WHO = '{UIDS.get(verifier)}', WHERE = '{home}' }}\n"
        )
        files = {"tests/check.py": CHECK.replace("\\\\", "\\")}
        return make_task(name, toml=toml, dockerfile=DOCKERFILE, test=test, files=files)

    return task


def test_the_tests_decide_and_the_oracle_acts_as_the_agent(docker_bench, make, users) -> None:
    path = make(users)
    environment, task = docker_bench.environment_of(path)
    owner = f'[ "$(stat -c %u answer)" = {UIDS[users[0]]} ] || rm answer'
    solved = docker_bench.judge(path, [*environment.oracle_commands(task), owner])
    nothing = docker_bench.judge(path, [])
    assert (solved.reward, nothing.reward) == (1.0, 0.0), (solved.report, nothing.report)
    assert "integrity" not in solved.report and solved.report["exit_code"] == 0


# All that an agent can leave, at once: any of it that works shows.
LEFT = [
    f"{FORGE}; echo '{{\"reward\": 1}}' > /logs/verifier/reward.json; chmod 0 /logs/verifier/*",
    f"mkdir -p /tests/d && touch /tests/d/x && chmod 0 /tests/d; echo '{FORGE}' > /tests/test.sh",
    "echo 'print(1)' > /tests/json.py; chmod 0 /tests",
    f"echo '{FORGE}; exec true' | tee .bashrc .profile .bash_profile /tmp/.bashrc > /tmp/start",
    "echo 'export BASH_ENV=/tmp/start PYTHONSTARTUP=/app/json.py PATH=/app:$PATH' >> ~/.profile",
    "mkdir -p ~/.local/lib/python3.11/site-packages /tmp/.local/lib/python3.11/site-packages",
    "echo 'print(1); import os; os._exit(0)' | tee json.py sitecustomize.py usercustomize.py"
    " ~/.local/lib/python3.11/site-packages/usercustomize.py"
    " /tmp/.local/lib/python3.11/site-packages/usercustomize.py > /dev/null",
    "for p in bash find python3 chmod id sleep; do printf '#!/bin/sh\\necho 1\\n' > $p; done",
    "chmod 755 bash find python3 chmod id sleep",
    f"trap '' TERM; setsid nohup bash -c 'while :; do {FORGE}; rm -f /logs/verifier/*.json; "
    'echo "print(1)" >/tests/check.py; /usr/bin/sleep 0.001; done\' >/dev/null 2>&1 &',
]
ROOTS = ["sed -i s/1001/0/ /etc/passwd", "mv /logs /moved && mkdir -p /logs/verifier && " + FORGE]


def test_what_an_agent_leaves_does_not_reach_the_other_user(docker_bench, make, users) -> None:
    path = make(users)
    attacks = [*LEFT, *(ROOTS if users[0] == "root" else [])]
    forged = docker_bench.judge(path, attacks)
    honest = docker_bench.judge(path, [SOLVED, *attacks])
    assert (forged.reward, honest.reward) == (0.0, 1.0), (forged.report, honest.report)
    for verdict in (forged, honest):
        assert "planted_reward" in verdict.report["integrity"]


@pytest.mark.parametrize("verifier", ["root", "judge"])
def test_even_a_process_that_is_kept_cannot_write_for_the_verifier(
    docker_bench, make, verifier: str
) -> None:
    """It holds the folders open, and a file of its own in them, from before they change hands."""
    test = TEST_SH.replace("sleep 0.1", "sleep 0.5")
    writer = (
        f"setsid bash -c 'cd /logs/verifier; exec 9<. 8>mine; while :; do {FORGE}; "
        "echo 1 >reward.txt; echo 1 >/proc/self/fd/9/reward.txt; echo 1 >&8; cat /tests/check.py "
        ">>/tmp/seen; sleep 0.001; done' >/dev/null 2>&1 &"
    )
    # Quicker than anybody clears: were the agent's folders to be empty once, an honest one is lost.
    forever = 'setsid bash -c "while :; do echo 1 >m$m; done"'
    haste = f"cd /logs/verifier; for m in 1 2 3; do {forever} & done"
    path = make(("agent", verifier), test + "[ ! -s /tmp/seen ] && rm /logs/verifier/m* || :\n")
    config = TerminalBenchConfig(agent_processes="keep")
    judged = [
        docker_bench.judge(path, [*solved, writer, haste, "sleep 0.3"], config)
        for solved in ([], [SOLVED])
    ]
    assert [verdict.report["reason"] for verdict in judged] == ["judged", "judged"]
    assert [verdict.reward for verdict in judged] == [0.0, 1.0], [v.report for v in judged]
    assert "planted_reward" in judged[0].report["integrity"]


# Of the agent's, run by the tests as who they are.
PROGRAMS = {
    f"{FORGE}; for p in /proc/[0-9]*; do kill -KILL ${{p#/proc/}}; done": "killed_tests",
    f"echo '{FORGE}; exit' >/tests/test.sh; echo 'print(1)' >/tests/check.py": "changed_tests",
}


@pytest.mark.parametrize("text", PROGRAMS)
def test_a_program_that_the_tests_run_is_a_zero_and_recorded(
    docker_bench, make, users, text: str
) -> None:
    command = f"cat > program <<'EOF_PROGRAM'\n{text}\nEOF_PROGRAM"
    verdict = docker_bench.judge(make(users), [command])
    assert verdict.reward == 0.0, verdict.report
    assert verdict.report["integrity"] == [PROGRAMS[text]]


def test_what_root_s_tests_run_as_the_agent_reads_no_tests_and_writes_no_reward(
    docker_bench, make
) -> None:
    """The safe way to run an agent's program, which one user alone does not have."""
    test = TEST_SH.replace(
        "bash /app/program", "setpriv --reuid=65532 --regid=65532 --clear-groups bash /app/program"
    )
    program = f"cat > program <<'EOF'\n{FORGE}; cat /tests/check.py; kill -9 1 $PPID -1\nEOF"
    verdict = docker_bench.judge(make(("agent", "root"), test), [SOLVED, program])
    assert verdict.reward == 1.0, verdict.report
    assert verdict.report["output"].count("Permission denied") == 2
    assert "integrity" not in verdict.report


# Ids, and what comes of becoming root, of tracing the server, of reading what is root's.
PROBE = b"""\
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
found = [os.getresuid()]
for attempt in (lambda: os.setuid(0), lambda: libc.ptrace(16, 1, 0, 0), lambda: open("/secret")):
    try:
        failed = attempt() == -1
        found.append(errno.errorcode[ctypes.get_errno()] if failed else "GAINED")
    except OSError as error:
        found.append(errno.errorcode[error.errno])
print(*found)
"""


# Opens /tests, and what will be made in it, to the agent by an access control list.
SHARE = """
import os, struct
entries = ((1, -1), (2, 65532), (4, -1), (16, -1), (32, -1))
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", tag, 7, who) for tag, who in entries)
for kind in ("access", "default"):
    os.setxattr("/tests", f"system.posix_acl_{kind}", acl)
print(sorted(os.listxattr("/tests")))
"""


def test_neither_user_has_root_s_capabilities_or_reaches_the_server(docker_bench, make) -> None:
    """Whose server is root, so that it can be both."""
    environment, task = docker_bench.environment_of(make(("65532", "judge")))
    look = (
        "id -u; id -g; id -G; grep -E 'Cap(Inh|Prm|Eff|Amb)|NoNew' /proc/self/status | xargs; "
        "for p in python3 /opt/raise /opt/capable; do $p -I {place}/probe.py; done; "
        "kill -9 1; kill -INT 1; prlimit --pid 1 --as=1048576; unshare -Ur true; "
        "cat /proc/1/mem /proc/1/environ; ls /proc/1/fd; echo end"
    )
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("link")
        entry.type, entry.linkname = tarfile.LNKTYPE, "unpacked"  # only `tar` inside takes it
        tar.addfile(tarfile.TarInfo("unpacked"))
        tar.addfile(entry)

    async def as_one(sandbox: Sandbox, uid: int, gid: int, place: str) -> None:
        await sandbox.put({f"{place}/probe.py": PROBE})
        said = (await sandbox.exec(look.format(place=place), timeout_s=20)).output
        none = "CapInh: {0} CapPrm: {0} CapEff: {0} CapAmb: {0} NoNewPrivs: 1".format("0" * 16)
        assert said.startswith(f"{uid}\n{gid}\n{gid} 1500\n{none}\n"), said
        assert said.count(f"({uid}, {uid}, {uid}) EPERM EPERM EACCES\n") == 3, said
        assert said.count("not permitted") == 4 and said.count("ermission denied") == 3, said
        assert said.endswith("end\n")
        await sandbox.put({"put": b"x", "@all.tar": archive.getvalue()}, base=place)
        owners = await sandbox.exec(f"cd {place}; stat -c %u put unpacked link", timeout_s=20)
        assert owners.output.split() == [str(uid)] * 3
        for path in ("/secret", f"{place}/to-secret"):
            await sandbox.exec(f"ln -sf /secret {place}/to-secret", timeout_s=20)
            with pytest.raises(PermissionError):
                await sandbox.get(path)
        with pytest.raises(PermissionError):
            await sandbox.put({"/etc/planted": b"x"})
        assert await sandbox.get(f"{place}/put") == b"x"

    async def body(sandbox: Sandbox) -> None:
        await as_one(sandbox, 65532, 65532, "/app")
        await sandbox.exec("setsid sleep 100 &", timeout_s=20)
        await sandbox.end_processes()
        shared = await sandbox.exec(f"python3 -c '{SHARE}'", timeout_s=20)
        assert shared.output == "['system.posix_acl_access', 'system.posix_acl_default']\n"
        await sandbox.hand_over(["/tests"])
        left = "import os; print(os.listxattr('/tests'), oct(os.stat('/tests').st_mode & 0o7777))"
        assert (await sandbox.exec(f'python3 -c "{left}"', timeout_s=20)).output == "[] 0o700\n"
        await as_one(sandbox, 1001, 1001, "/tests")
        with pytest.raises(NotADirectoryError):
            await sandbox.hand_over(["/etc/passwd"])

    docker_bench.in_sandbox(environment, task, body)


def test_a_verification_for_another_user_can_be_repeated(docker_bench, make) -> None:
    environment, task = docker_bench.environment_of(make(("agent", "judge")))

    async def twice(provider: Any) -> list[Verdict]:
        sandbox = await provider.start(environment.sandbox_spec(task))
        await environment.prepare(task, sandbox)
        await sandbox.exec(SOLVED, timeout_s=20)
        submission = await environment.collect(task, sandbox)
        return [await environment.verify(task, submission, provider) for _ in range(2)]

    judged = docker_bench.with_provider(twice)
    assert [verdict.reward for verdict in judged] == [1.0, 1.0]


def test_a_user_that_the_image_lacks_is_one_line(docker_bench, make) -> None:
    with pytest.raises(InfrastructureError, match="there is no user nobody-here in the image"):
        docker_bench.judge(make(("agent", "nobody-here")), [])


_KILLED = """
import asyncio, sys
from environments.protocols import SandboxSpec
from environments.sandbox.images import MINI_IMAGE
from environments.sandbox.select import open_provider
async def main():
    provider = await open_provider("docker", image=MINI_IMAGE, run_id=sys.argv[1], max_parallel=1)
    spec = SandboxSpec(MINI_IMAGE, user="agent", later_user="root")
    sandbox = await provider.start(spec)
    await sandbox.exec("setsid sleep 1000 &", timeout_s=9)
    await sandbox.hand_over(["/tmp"])
    print("judging", flush=True)
    await sandbox.exec("sleep 1000", timeout_s=1000)
asyncio.run(main())
"""


def test_a_harness_killed_while_the_other_user_judges_leaves_nothing(api: Any) -> None:
    run_id = f"killed-users-{os.getpid()}"
    command = [sys.executable, "-c", _KILLED, run_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None and harness.stdout.readline() == "judging\n"
        filters = {"label": f"{LABEL}run={run_id}"}
        assert len(api.containers(filters=filters)) == 1
        harness.send_signal(signal.SIGKILL)
    reap(api)
    assert api.containers(all=True, filters=filters) == []
