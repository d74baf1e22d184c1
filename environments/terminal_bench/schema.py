"""The keys of task.toml, section by section, and what each may hold: schema 1.4."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

NO_NETWORK, PUBLIC, ALLOWLIST = "no-network", "public", "allowlist"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _env(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


_Check = tuple[Callable[[Any], Any], str]
_TEXT: _Check = (lambda v: isinstance(v, str) and v != "", "a text")
_SECONDS: _Check = (lambda v: _number(v) and 0 < v < math.inf, "a number of seconds above 0")
_DELAY: _Check = (lambda v: _number(v) and 0 <= v < math.inf, "a number of seconds")
_COUNT: _Check = (lambda v: _number(v) and v == int(v) and v > 0, "a whole number above 0")
_NONE_OR_MORE: _Check = (lambda v: _number(v) and v == int(v) and v >= 0, "a whole number")
_CPUS: _Check = (lambda v: _number(v) and 0 < v < math.inf, "a number above 0")
_FLAG: _Check = (lambda v: isinstance(v, bool), "true or false")
_USER: _Check = (lambda v: _TEXT[0](v) or _NONE_OR_MORE[0](v), "a user name or id")
_LIST: _Check = (lambda v: isinstance(v, list), "a list")
_TABLE: _Check = (lambda v: isinstance(v, dict), "a table")
_NAMES: _Check = (_strings, "a list of texts")
_ENV: _Check = (_env, "a table of texts")
_PATH: _Check = (lambda v: _TEXT[0](v) and v.startswith("/"), "an absolute path")
_SIZE: _Check = (
    lambda v: isinstance(v, str) and re.fullmatch(r"\d+(\.\d+)?[KMG]", v.strip().upper()),
    "a size like 512M or 2G",
)
_MODE: _Check = (lambda v: v in (NO_NETWORK, PUBLIC, ALLOWLIST), "no-network, public or allowlist")
_NETWORK = {"network_mode": _MODE, "allowed_hosts": _NAMES}

KEYS: dict[str, dict[str, _Check]] = {
    "": {
        "schema_version": _TEXT,
        "version": _TEXT,  # of the schema: its name before 1.1
        "source": _TEXT,
        "artifacts": _LIST,
        "steps": _LIST,
        "multi_step_reward_strategy": _TEXT,
        **dict.fromkeys(
            ("task", "metadata", "verifier", "agent", "environment", "solution"), _TABLE
        ),
    },
    "task": {
        **dict.fromkeys(("name", "version"), _TEXT),
        "description": (lambda v: isinstance(v, str), "a text"),
        "authors": _LIST,
        "keywords": _NAMES,
    },
    "verifier": {
        "timeout_sec": _SECONDS,
        "env": _ENV,
        "user": _USER,
        "environment_mode": (lambda v: v in ("shared", "separate"), "shared or separate"),
        "environment": _TABLE,
        "collect": _LIST,
        **_NETWORK,
    },
    "agent": {"timeout_sec": _SECONDS, "user": _USER, **_NETWORK},
    "environment": {
        "build_timeout_sec": _SECONDS,
        "docker_image": _TEXT,
        "os": (lambda v: str(v).lower() in ("linux", "windows"), "linux or windows"),
        "cpus": _CPUS,
        "memory_mb": _COUNT,
        "storage_mb": _COUNT,
        "gpus": _NONE_OR_MORE,
        "gpu_types": _NAMES,
        "tpu": _TABLE,
        "allow_internet": _FLAG,  # deprecated, like memory and storage
        "memory": _SIZE,
        "storage": _SIZE,
        "mcp_servers": _LIST,
        "env": _ENV,
        "skills_dir": _TEXT,
        "healthcheck": _TABLE,
        "workdir": _PATH,
        **_NETWORK,
    },
    "environment.healthcheck": {
        "command": _TEXT,
        "interval_sec": _DELAY,
        "timeout_sec": _SECONDS,
        "start_period_sec": _DELAY,
        "start_interval_sec": _DELAY,
        "retries": _COUNT,
    },
    "solution": {"env": _ENV},
}
