"""task.toml: every key of the schema is read, and whatever is wrong is one line with its key."""

from __future__ import annotations

import math

import pytest

from environments.terminal_bench.tasktoml import Healthcheck, TaskError, parse

FULL = """\
schema_version = "1.4"
source = "here"
artifacts = []

[task]
name = "org/name"
version = "2"
description = ""
authors = [{ name = "A", email = "a@b.invalid" }]
keywords = ["x"]

[metadata]
anything = { goes = [1, 2] }
difficulty = "hard"

[verifier]
timeout_sec = 90
env = { KEY = "${TB_KEY}", LEVEL = "${TB_LEVEL:-low}-${TB_KEY:-x}", PLAIN = "$HOME" }
user = 1000
network_mode = "no-network"
environment_mode = "shared"

[agent]
timeout_sec = 1800.5
user = 1000
network_mode = "no-network"

[environment]
build_timeout_sec = 1200.0
docker_image = "org/image:1"
os = "Linux"
cpus = 2
memory_mb = 4096
storage_mb = 512
gpus = 0
gpu_types = []
network_mode = "public"
env = { MODE = "a b" }
workdir = "/srv"
mcp_servers = []

[environment.healthcheck]
command = "test -e /ready"
interval_sec = 1
timeout_sec = 2.5
start_period_sec = 3
start_interval_sec = 0
retries = 4

[solution]
env = { HOW = "well" }
"""


def test_every_key_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TB_KEY", "k$")
    monkeypatch.delenv("TB_LEVEL", raising=False)
    found = parse(FULL, "task.toml")
    assert found.metadata["difficulty"] == "hard"
    assert (found.verifier_timeout_s, found.agent_timeout_s) == (90.0, 1800.5)
    assert (found.verifier_user, found.agent_user) == ("1000", "1000")
    assert found.verifier_env == {"KEY": "k$", "LEVEL": "low-k$", "PLAIN": "$HOME"}
    assert found.solution_env == {"HOW": "well"}
    assert found.environment == {"MODE": "a b"}
    assert (found.build_timeout_s, found.docker_image) == (1200.0, "org/image:1")
    assert (found.cpus, found.memory_mb, found.storage_mb) == (2.0, 4096, 512)
    assert found.workdir == "/srv"
    assert found.healthcheck == Healthcheck("test -e /ready", 1, 2.5, 3, 0, 4)
    assert found.agent_network.mode == found.verifier_network.mode == "no-network"
    assert found.agent_network.key == "agent.network_mode"
    assert found.unsupported == ()


def test_defaults() -> None:
    found = parse('schema_version = "1.4"', "task.toml")
    assert (found.agent_timeout_s, found.verifier_timeout_s) == (math.inf, 600.0)
    assert (found.cpus, found.memory_mb, found.storage_mb) == (1.0, 2048, 10240)
    assert (found.agent_user, found.workdir, found.healthcheck) == ("", None, None)
    assert found.agent_network.mode == "public"
    assert found.agent_network.key == "environment.network_mode"


def test_deprecated_spellings() -> None:
    text = 'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = false'
    found = parse(text, "task.toml")
    assert (found.memory_mb, found.storage_mb) == (2048, 512)
    assert found.agent_network.mode == "no-network"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("version = 2", "version: 2 is not a text"),
        ("verifer = {}", "verifer: no such key in schema 1.4; there is: schema_version"),
        ("[agent]\ntimeout = 3", "agent.timeout: no such key"),
        ("[agent]\ntimeout_sec = 0", "agent.timeout_sec: 0 is not a number of seconds above 0"),
        ("[agent]\ntimeout_sec = inf", "agent.timeout_sec: inf"),
        ("[agent]\ntimeout_sec = true", "agent.timeout_sec: True"),
        ("[verifier]\nenv = { A = 1 }", "verifier.env: {'A': 1} is not a table of texts"),
        ("[verifier]\nenv = { 'A B' = '' }", "verifier.env.A B: is not a variable's name"),
        ("[solution.env]\nA = '${TB_NOT_THERE}'", "solution.env.A: ${TB_NOT_THERE} is not set"),
        ("[environment]\nmemory_mb = 1.5", "environment.memory_mb: 1.5 is not a whole number"),
        ("[environment]\ncpus = 0", "environment.cpus: 0 is not a number above 0"),
        ("[environment]\nstorage = '1 TB'", "environment.storage: '1 TB' is not a size"),
        ("[environment]\nworkdir = 'app'", "environment.workdir: 'app' is not an absolute path"),
        ("[environment]\nnetwork_mode = 'none'", "environment.network_mode: 'none' is not"),
        ("[environment]\nallowed_hosts = ['a/b c']", "environment.allowed_hosts: 'a/b c' is no"),
        (
            "[environment]\nnetwork_mode = 'public'\nallowed_hosts = ['a']",
            'environment.allowed_hosts: needs network_mode = "allowlist"',
        ),
        ("[environment.healthcheck]\nretries = 3", "environment.healthcheck.command: is missing"),
        ("[environment.healthcheck]\ncmd = 'x'", "environment.healthcheck.cmd: no such key"),
        ("[environment", "no valid TOML"),
    ],
)
def test_a_mistake_is_one_line_with_its_key(line: str, words: str) -> None:
    with pytest.raises(TaskError) as caught:
        parse(f'schema_version = "1.4"\n{line}', "t/task.toml")
    assert str(caught.value).startswith("t/task.toml: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", 'schema_version = "2.0"', 'schema_version = "1.5"'])
def test_an_unknown_schema_is_said(text: str) -> None:
    with pytest.raises(TaskError, match=r"task.toml: schema_version: "):
        parse(text, "task.toml")


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("[[steps]]\nname = 'a'", "steps"),
        ("artifacts = ['/app/x']", "artifacts"),
        ("[verifier]\nenvironment_mode = 'separate'", "verifier.environment_mode"),
        ("[verifier.environment]\nworkdir = '/x'", "verifier.environment_mode"),
        ("[[verifier.collect]]\ncommand = 'x'", "verifier.collect"),
        ("[environment]\nos = 'windows'", "environment.os"),
        ("[environment]\ngpus = 1", "environment.gpus"),
        ("[environment.tpu]\ntype = 'v4'\ntopology = '2x2'", "environment.tpu"),
        ("[[environment.mcp_servers]]\nname = 'm'", "environment.mcp_servers"),
        ("[environment]\nskills_dir = '/s'", "environment.skills_dir"),
    ],
)
def test_what_cannot_be_honoured_is_listed(lines: str, key: str) -> None:
    found = parse(f'schema_version = "1.4"\n{lines}', "task.toml")
    assert [name for name, _ in found.unsupported] == [key]


def test_hosts_alone_mean_an_allow_list() -> None:
    text = "schema_version = '1.4'\n[agent]\nallowed_hosts = ['*.pypi.org', '10.0.0.0/8', '::1']"
    found = parse(text, "task.toml")
    assert found.agent_network.mode == "allowlist"
    assert found.agent_network.allowed_hosts == ("*.pypi.org", "10.0.0.0/8", "::1")
    assert found.verifier_network.mode == "public"
