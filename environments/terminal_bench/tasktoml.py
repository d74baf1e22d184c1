"""task.toml in schema 1.4 (https://harborframework.com/docs/task-format), read strictly.

The reference reader ignores keys that it does not know; here a misspelt key is an error, because a
limit that is silently not in force makes a task another task.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from environments.terminal_bench.schema import ALLOWLIST, KEYS, NO_NETWORK, PUBLIC

MAX_SCHEMA = (1, 4)
DEFAULT_CPUS, DEFAULT_MEMORY_MB, DEFAULT_STORAGE_MB = 1.0, 2048, 10240
_HOST = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class TaskError(Exception):
    """One line on a task folder that cannot be used: the file, the key and what is wrong."""


@dataclass(frozen=True)
class Network:
    """Who may be reached in one phase; `key` says where that was written."""

    key: str
    mode: str
    allowed_hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Healthcheck:
    """Docker's HEALTHCHECK, run by the harness before the agent starts; exit 0 is healthy."""

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    start_interval_s: float = 5.0
    retries: int = 3


@dataclass(frozen=True)
class TaskToml:
    """The settings of one task, defaults filled in. `user` "" is the image's own; `unsupported` is
    (key, why) of what is well-formed and asks for more than this project gives."""

    metadata: Mapping[str, Any]
    agent_timeout_s: float
    agent_user: str
    verifier_timeout_s: float
    verifier_user: str
    verifier_env: Mapping[str, str]
    build_timeout_s: float
    docker_image: str | None
    cpus: float
    memory_mb: int
    storage_mb: int
    environment: Mapping[str, str]
    workdir: str | None
    healthcheck: Healthcheck | None
    solution_env: Mapping[str, str]
    agent_network: Network
    verifier_network: Network
    unsupported: tuple[tuple[str, str], ...] = field(default=())


def parse(text: str, file: str) -> TaskToml:
    """Raises TaskError, one line that names `file` and the key, for what is missing, unknown or
    not of its kind."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{file}: no valid TOML: {error}") from error
    reader = _Reader(document, file)
    for section in KEYS:
        reader.check(section)
    reader.check_schema()
    environment, verifier = reader.section("environment"), reader.section("verifier")
    agent = reader.section("agent")
    baseline = reader.network("environment", None)
    return TaskToml(
        metadata=reader.section("metadata"),
        agent_timeout_s=float(agent.get("timeout_sec", math.inf)),
        agent_user=str(agent.get("user", "")),
        verifier_timeout_s=float(verifier.get("timeout_sec", 600.0)),
        verifier_user=str(verifier.get("user", "")),
        verifier_env=reader.variables("verifier"),
        build_timeout_s=float(environment.get("build_timeout_sec", 600.0)),
        docker_image=environment.get("docker_image"),
        cpus=float(environment.get("cpus", DEFAULT_CPUS)),
        memory_mb=reader.megabytes("memory", DEFAULT_MEMORY_MB),
        storage_mb=reader.megabytes("storage", DEFAULT_STORAGE_MB),
        environment=reader.variables("environment"),
        workdir=environment.get("workdir"),
        healthcheck=reader.healthcheck(),
        solution_env=reader.variables("solution"),
        agent_network=reader.network("agent", baseline),
        verifier_network=reader.network("verifier", baseline),
        unsupported=tuple(reader.unsupported()),
    )


class _Reader:
    def __init__(self, document: dict[str, Any], file: str) -> None:
        self.document = document
        self.file = file

    def wrong(self, key: str, what: str) -> TaskError:
        return TaskError(f"{self.file}: {key}: {what}")

    def section(self, name: str) -> dict[str, Any]:
        found: Any = self.document
        for part in filter(None, name.split(".")):
            found = found.get(part, {})
        return found

    def check(self, name: str) -> None:
        known = KEYS[name]
        for key, value in self.section(name).items():
            full = f"{name}.{key}" if name else key
            if key not in known:
                raise self.wrong(full, f"no such key in schema 1.4; there is: {', '.join(known)}")
            check, kind = known[key]
            if not check(value):
                raise self.wrong(full, f"{value!r} is not {kind}")

    def check_schema(self) -> None:
        key = "schema_version" if "schema_version" in self.document else "version"
        if key not in self.document:
            raise self.wrong("schema_version", 'is missing; write schema_version = "1.4"')
        found = re.fullmatch(r"(\d+)\.(\d+)", self.document[key])
        if not found or not (1, 0) <= (int(found[1]), int(found[2])) <= MAX_SCHEMA:
            raise self.wrong(key, f"{self.document[key]!r} is not between 1.0 and 1.4")

    def megabytes(self, name: str, default: int) -> int:
        environment = self.section("environment")
        if f"{name}_mb" in environment:
            return int(environment[f"{name}_mb"])
        if name not in environment:
            return default
        size = environment[name].strip().upper()
        return max(1, int(float(size[:-1]) * {"K": 1 / 1024, "M": 1, "G": 1024}[size[-1]]))

    def variables(self, section: str) -> dict[str, str]:
        """`env`, with ${NAME} and ${NAME:-default} taken from the harness's own environment."""
        resolved = {}
        for name, text in self.section(section).get("env", {}).items():
            if not re.fullmatch(r"[A-Za-z_]\w*", name):
                raise self.wrong(f"{section}.env.{name}", "is not a variable's name")
            for match in _VARIABLE.finditer(text):
                if match[2] is None and match[1] not in os.environ:
                    raise self.wrong(f"{section}.env.{name}", f"{match[0]} is not set here")
            resolved[name] = _VARIABLE.sub(
                lambda match: os.environ.get(match[1], match[2] or ""), text
            )
        return resolved

    def network(self, section: str, baseline: Network | None) -> Network:
        table = self.section(section)
        hosts, mode = table.get("allowed_hosts", []), table.get("network_mode")
        for host in hosts:
            if not _is_host(host):
                raise self.wrong(f"{section}.allowed_hosts", f"{host!r} is no host name or address")
        if hosts and mode not in (None, ALLOWLIST):
            raise self.wrong(f"{section}.allowed_hosts", f'needs network_mode = "{ALLOWLIST}"')
        if hosts or mode is not None:
            return Network(f"{section}.network_mode", mode or ALLOWLIST, tuple(hosts))
        if baseline is not None:
            return baseline
        mode = PUBLIC if table.get("allow_internet", True) else NO_NETWORK
        return Network("environment.network_mode", mode)

    def healthcheck(self) -> Healthcheck | None:
        table = self.section("environment").get("healthcheck")
        if table is None:
            return None
        if "command" not in table:
            raise self.wrong("environment.healthcheck.command", "is missing")
        return Healthcheck(**{key.replace("_sec", "_s"): value for key, value in table.items()})

    def unsupported(self) -> list[tuple[str, str]]:
        environment, verifier = self.section("environment"), self.section("verifier")
        found = [
            (bool(self.document.get("steps")), "steps", "tasks of several steps are not run"),
            (bool(self.document.get("artifacts")), "artifacts", "no files are copied out"),
            (
                verifier.get("environment_mode") == "separate" or "environment" in verifier,
                "verifier.environment_mode",
                "a verifier in a machine of its own is not run",
            ),
            (bool(verifier.get("collect")), "verifier.collect", "no command collects artifacts"),
            (
                str(environment.get("os", "linux")).lower() != "linux",
                "environment.os",
                "only linux is run",
            ),
            (environment.get("gpus", 0) > 0, "environment.gpus", "sandboxes have no GPU"),
            ("tpu" in environment, "environment.tpu", "sandboxes have no TPU"),
            (bool(environment.get("mcp_servers")), "environment.mcp_servers", "the agent has none"),
            ("skills_dir" in environment, "environment.skills_dir", "the agent has no skills"),
        ]
        return [(key, why) for wanted, key, why in found if wanted]


def _is_host(text: str) -> bool:
    if _HOST.fullmatch(text.lower().rstrip(".")):
        return True
    try:
        ipaddress.ip_network(text, strict=True)
    except ValueError:
        return False
    return True
