"""What a task may reach: what its task.toml asks for, as far as env.network grants it."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from environments.terminal_bench import schema, tasktoml
from environments.terminal_bench.config import TerminalBenchConfig, way_out
from environments.terminal_bench.folder import TaskFolder
from environments.terminal_bench.tasktoml import TaskError

_NONE = schema.NO_NETWORK


@dataclass(frozen=True)
class Network:
    """Of one sandbox: everything (`public`), or the hosts of each phase. `key` says what in
    task.toml asks for more than no network; "" where nothing does."""

    public: bool = False
    agent_hosts: tuple[str, ...] = ()
    verifier_hosts: tuple[str, ...] = ()
    key: str = ""

    @property
    def later_hosts(self) -> Sequence[str]:
        """What the verifier may reach and the agent may not."""
        return tuple(host for host in self.verifier_hosts if host not in self.agent_hosts)


def granted(task: TaskFolder, config: TerminalBenchConfig) -> Network:
    """Raises TaskError, one line with the file and the key, for what is not granted."""
    file = str(task.path / "task.toml")
    agent, verifier = task.settings.agent_network, task.settings.verifier_network
    modes = [_mode(phase, config, file) for phase in (agent, verifier)]
    if (schema.PUBLIC in modes) and modes[0] != modes[1]:
        raise TaskError(
            f"{file}: {verifier.key}: {modes[1]} after {modes[0]} for the agent; "
            "a sandbox keeps its network"
        )
    asking = agent if modes[0] != _NONE else verifier if modes[1] != _NONE else None
    return Network(
        public=modes[0] == schema.PUBLIC,
        agent_hosts=agent.allowed_hosts if modes[0] == schema.ALLOWLIST else (),
        verifier_hosts=verifier.allowed_hosts if modes[1] == schema.ALLOWLIST else (),
        key="" if asking is None else asking.key,
    )


def _mode(phase: tasktoml.Network, config: TerminalBenchConfig, file: str) -> str:
    if phase.mode == _NONE or phase.key in config.ignore:
        return _NONE
    if phase.mode == schema.PUBLIC:
        if config.network != "public":
            raise TaskError(
                f"{file}: {phase.key}: asks for the public network (the default); "
                f"env.network=public grants it{way_out(phase.key)}"
            )
        return schema.PUBLIC
    if not phase.allowed_hosts:
        return _NONE
    if config.network == "none":
        raise TaskError(
            f"{file}: {phase.key}: asks for {', '.join(phase.allowed_hosts)}; "
            f"env.network=allowed grants that{way_out(phase.key)}"
        )
    for host in phase.allowed_hosts:
        if _is_address(host):
            hosts_key = phase.key.replace("network_mode", "allowed_hosts")
            raise TaskError(
                f"{file}: {hosts_key}: {host}: a sandbox can be allowed names, not addresses"
                f"{way_out(phase.key)}"
            )
    return schema.ALLOWLIST


def _is_address(host: str) -> bool:
    """In any spelling that a resolver takes for one."""
    last = host.rstrip(".").rpartition(".")[2].lower()
    if last.isdigit() or last.startswith("0x"):
        return True
    try:
        ipaddress.ip_network(host, strict=False)
    except ValueError:
        return False
    return True
