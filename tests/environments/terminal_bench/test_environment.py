"""TerminalBench: what a sandbox is made of, what the agent reads, what becomes of bad images."""

from __future__ import annotations

import math

import pytest

from environments.protocols import InfrastructureError, Sandbox, UsageError
from environments.terminal_bench.config import TerminalBenchConfig
from environments.terminal_bench.environment import TerminalBench

TOML = """\
schema_version = "1.4"

[agent]
timeout_sec = 77

[environment]
cpus = 2
memory_mb = 300
storage_mb = 40
build_timeout_sec = 30
network_mode = "no-network"
env = { MODE = "a b" }
"""
ROOTS = "FROM thundersync/mini:1\nRUN mkdir /srv/work && touch /etc/theirs\nWORKDIR /srv/work\n"


def test_the_sandbox_follows_the_settings(bench, make_task) -> None:
    environment, task = bench.environment_of(make_task(toml=TOML))
    spec = environment.sandbox_spec(task)
    assert (spec.cpus, spec.memory_mb, spec.scratch_mb, spec.file_mb) == (2.0, 300, 40, 40)
    assert (spec.workdir, spec.user, spec.network) == ("/app", "", "none")
    assert spec.capabilities == ()
    assert spec.build is not None
    assert (spec.build.base, spec.build.timeout_s) == ("thundersync/mini:1", 30.0)
    assert spec.build.network == "none"
    assert task.time_limit_s == 77.0

    async def look(sandbox: Sandbox) -> str:
        return (await sandbox.exec('echo "$MODE"; pwd; id -u', timeout_s=20)).output

    assert bench.in_sandbox(environment, task, look).split("\n")[:3] == ["a b", "/app", "65532"]


def test_root_has_few_capabilities_and_a_granted_network(make_task, bench) -> None:
    toml = TOML.replace("no-network", "public") + 'workdir = "/srv"\n'
    path = make_task(toml=toml, dockerfile=ROOTS)
    environment, task = bench.environment_of(path, TerminalBenchConfig(network="public"))
    spec = environment.sandbox_spec(task)
    assert (spec.workdir, spec.network) == ("/srv", "bridge")
    assert "CHOWN" in spec.capabilities and "SYS_ADMIN" not in spec.capabilities
    assert spec.environment["HOME"] == "/root"


def test_a_second_user_is_there_only_where_the_two_differ(make_task, bubblewrap_bench) -> None:
    def later(agent: str, verifier: str) -> str | None:
        lines = f'[verifier]\nuser = "{verifier}"\n' if verifier else ""
        toml = TOML.replace("[agent]", f'[agent]\nuser = "{agent}"' if agent else "[agent]")
        environment, task = bubblewrap_bench.environment_of(make_task(toml=toml + lines))
        spec = environment.sandbox_spec(task)
        assert ("SETUID" in spec.capabilities) == ("root" in (agent, verifier))
        return spec.later_user

    assert [later("", ""), later("agent", ""), later("", "agent"), later("root", "root")] == [
        None
    ] * 4
    assert [later("", "root"), later("root", ""), later("1", "2")] == ["root", "", "2"]


def test_a_task_of_another_process_is_read_again(make_task, bench) -> None:
    path = make_task()
    _, task = bench.environment_of(path)
    other = TerminalBench(TerminalBenchConfig(dataset=str(path.parent)))
    assert other.first_message(task).count("Write 42 to /app/answer.") == 1
    assert task.time_limit_s == math.inf


def test_prompts(make_task, bench) -> None:
    environment, task = bench.environment_of(make_task())
    message = environment.first_message(task)
    for words in ("Write 42", "```bash\nsubmit\n```", "/app", "no network", "is ended first"):
        assert words in message
    short = TerminalBenchConfig(agent_prompt="short", agent_processes="keep")
    environment, task = bench.environment_of(make_task(), short)
    assert environment.first_message(task) == "Write 42 to /app/answer."
    hosts = TOML.replace("77", '77\nallowed_hosts = ["pypi.org", "*.debian.org"]')
    environment, task = bench.environment_of(make_task("asks", toml=hosts))
    assert "only these hosts can be reached: pypi.org, *.debian.org." in environment.first_message(
        task
    )
    mini = TerminalBench()
    assert mini.first_message(mini.tasks("train")[1]).startswith("convert_prices adds")
    assert mini.action("```bash\nls\n```") == "ls"
    assert mini.action("submit") is None


def test_the_oracle_has_its_files_and_variables_in_few_commands(bench, make_task) -> None:
    toml = TOML + '\n[solution]\nenv = { NUMBER = "4 2" }\n'
    files = {
        "solution/solve.sh": 'cat /solution/data/big | wc -c > size\n/solution/run "$NUMBER"\n',
        "solution/run": '#!/bin/bash\necho "${1/ /}" > answer\n',
        "solution/data/big": "x" * 200_000,
    }
    path = make_task(toml=toml, files=files)
    environment, task = bench.environment_of(path)
    commands = list(environment.oracle_commands(task))
    assert 3 <= len(commands) <= 8  # a turn each, of ten
    assert max(map(len, commands)) < 128 << 10
    assert bench.judge(path, [*commands, "test $(cat size) = 200000 || rm answer"]).reward == 1.0


def test_no_solution_is_said(make_task, bench) -> None:
    path = make_task()
    (path / "solution/solve.sh").unlink()
    environment, task = bench.environment_of(path)
    with pytest.raises(UsageError, match=r"agent=oracle: .*solution/solve.sh is missing"):
        environment.oracle_commands(task)


def check(command: str, **settings: object) -> str:
    lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
    return TOML + f"\n[environment.healthcheck]\ncommand = '{command}'\n{lines}"


def test_a_machine_is_healthy_before_the_agent_starts(bench, make_task) -> None:
    count = "echo x >> /tmp/n; test $(wc -l < /tmp/n) -ge 3"
    patient = {"start_period_sec": 30, "start_interval_sec": 0, "retries": 1}
    environment, task = bench.environment_of(make_task(toml=check(count, **patient)))

    async def look(sandbox: Sandbox) -> str:
        return (await sandbox.exec("wc -l < /tmp/n", timeout_s=20)).output

    assert bench.in_sandbox(environment, task, look).strip() == "3"
    strict = check("echo no; exit 1", interval_sec=0, retries=2)
    environment, task = bench.environment_of(make_task("ill", toml=strict))
    with pytest.raises(InfrastructureError, match=r"ill: environment.healthcheck fails 2 times"):
        bench.in_sandbox(environment, task, look)


@pytest.mark.parametrize(
    ("dockerfile", "toml", "words"),
    [
        ("FROM debian:12\nUSER 65532\nWORKDIR /app\n", TOML, "FROM debian:12"),
        (ROOTS, TOML, "its user is root"),
        (
            "FROM thundersync/mini:1\nUSER agent\nWORKDIR /app\n",
            TOML + '[verifier]\nallowed_hosts = ["pypi.org"]\n',
            "verifier.network_mode = allowlist",
        ),
        (None, TOML + 'docker_image = "org/image:1"\n', "docker_image = org/image:1"),
        (
            "FROM thundersync/mini:1\nUSER agent\nWORKDIR /app\n",
            TOML + '[verifier]\nuser = "root"\n',
            "agent.user = agent, verifier.user = root",
        ),
    ],
)
def test_what_needs_an_engine_is_lost_with_a_reason_elsewhere(
    bubblewrap_bench, make_task, dockerfile, toml: str, words: str
) -> None:
    path = make_task("heavy", toml=toml, dockerfile=dockerfile)
    with pytest.raises(InfrastructureError) as caught:
        bubblewrap_bench.judge(path, [])
    assert caught.value.kind == "image"
    assert "heavy: needs sandbox=docker: " in str(caught.value) and words in str(caught.value)


@pytest.mark.docker
def test_a_root_task_acts_and_is_judged_as_root(docker_bench, make_task) -> None:
    """As most published tasks do: the image's own user and folder, and service users."""
    test = (
        '#!/bin/bash\n[ $(id -u) = 0 ] && [ "$(stat -c %U /etc/theirs answer | xargs)" = '
        '"nobody root" ] && [ "$PWD" = /srv/work ] && echo 1 > /logs/verifier/reward.txt\n'
    )
    path = make_task(dockerfile=ROOTS, test=test)
    commands = [
        "chown nobody /etc/theirs && echo 42 > answer",
        "echo 1 > /logs/verifier/reward.txt; chmod 0 /logs/verifier/reward.txt",
        "setsid setpriv --reuid=65534 --clear-groups sleep 1000 &",
    ]
    verdict = docker_bench.judge(path, commands)
    assert verdict.reward == 1.0, verdict.report
    assert verdict.report["planted"] == ["/logs/verifier/reward.txt"]


@pytest.mark.docker
def test_a_prebuilt_image_needs_no_dockerfile(docker_bench, make_task) -> None:
    """Its workdir and user are the image's own; here those of the mini image."""
    test = '#!/bin/bash\n[ "$PWD" = /testbed ] && echo 1 > /logs/verifier/reward.txt\n'
    toml = TOML + 'docker_image = "thundersync/mini:1"\n'
    path = make_task(toml=toml, dockerfile=None, test=test)
    assert docker_bench.judge(path, []).reward == 1.0


@pytest.mark.docker
@pytest.mark.parametrize(
    ("dockerfile", "toml", "words"),
    [
        ("FROM thundersync/mini:1\nCOPY missing /\n", TOML, "COPY failed"),
        (
            "FROM thundersync/mini:1\nWORKDIR /app\nRUN exit 7\n",
            TOML,
            "returned a non-zero code: 7",
        ),
        (None, TOML + 'docker_image = "thundersync/none:1"\n', "thundersync/none:1"),
        (
            "FROM thundersync/mini:1\nWORKDIR /app\nRUN sleep 1; echo; sleep 60\n",
            TOML.replace("_sec = 30", "_sec = 0.5"),
            "the build takes longer than 0.5 s",
        ),
    ],
)
def test_an_image_that_cannot_be_made_is_one_line(
    docker_bench, make_task, dockerfile, toml: str, words: str
) -> None:
    with pytest.raises(InfrastructureError) as caught:
        docker_bench.judge(make_task("bad", toml=toml, dockerfile=dockerfile), [])
    assert caught.value.kind == "image"
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.docker
def test_no_file_of_a_container_may_be_larger_than_its_storage(docker_bench, make_task) -> None:
    environment, task = docker_bench.environment_of(make_task(toml=TOML))

    async def fill(sandbox: Sandbox) -> str:
        await sandbox.exec("head -c 100M /dev/zero > /app/big", timeout_s=20)
        return (await sandbox.exec("stat -c %s /app/big", timeout_s=20)).output

    assert int(docker_bench.in_sandbox(environment, task, fill)) == 40 << 20
