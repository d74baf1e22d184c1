"""A gate: the one way out of a sandbox whose task allows hosts, and the network that leads to it.

Each such sandbox has a network of its own, with its gate and nobody else in it: internal, and
without an address of the engine's host (otherwise whatever listens there could be reached from
inside). The gate is one more container, of the sandbox's own image, which every engine that can run
the sandbox has. gate_server.py, which runs in it, has the rules.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, ClassVar

from environments.protocols import InfrastructureError, SandboxSpec
from environments.sandbox.backoff import TemporaryError
from environments.sandbox.channel import Channel
from environments.sandbox.container import BOOTSTRAP, DockerSandbox
from environments.sandbox.engine import Engine
from environments.sandbox.gate_server import PROXY_PORT
from environments.sandbox.leftovers import remove_network

EGRESS_NETWORK = "bridge"
# For benchmarks by RFC 2544, so no public host is hidden by it; the host gets no route into it.
# Engines hand out some thirty networks of their own choice and then refuse.
POOL = IPv4Network("198.18.0.0/15")
_PREFIX = 29
_SUBNET_TRIES = 16
_MEMORY_MB = 128
_PIDS = 256  # a thread for each of its 128 connections
_LOOPBACK = "localhost,127.0.0.1,::1,sandbox"
_random = secrets.SystemRandom()  # two harnesses must not try the same subnets in the same order


def make_network(
    api: Any, name: str, labels: Mapping[str, str], pool: IPv4Network = POOL
) -> IPv4Network:
    """Blocking. Raises TemporaryError where no free subnet is found."""
    from docker.errors import APIError
    from docker.types import IPAMConfig, IPAMPool

    count = 1 << (_PREFIX - pool.prefixlen)
    for index in _random.sample(range(count), min(count, _SUBNET_TRIES)):
        subnet = IPv4Network((int(pool.network_address) + (index << (32 - _PREFIX)), _PREFIX))
        of_subnet = IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
        try:
            api.create_network(
                name,
                driver="bridge",
                internal=True,
                ipam=IPAMConfig(pool_configs=[of_subnet]),
                options={"com.docker.network.bridge.inhibit_ipv4": "true"},
                labels=dict(labels),
            )
        except APIError as error:
            if "overlap" not in str(error).lower():
                raise
        else:
            return subnet
    raise TemporaryError("start", f"{name}: no network is free in {pool}")


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


class Gate(DockerSandbox):
    source: ClassVar[bytes] = Path(__file__).with_name("gate_server.py").read_bytes()

    def __init__(
        self,
        name: str,
        engine: Engine,
        spec: SandboxSpec,
        labels: Mapping[str, str],
        mirrors: Sequence[str],
    ) -> None:
        """`spec` is the sandbox's."""
        super().__init__(name, engine, spec, labels)
        self._mirrors = mirrors
        self._subnet = POOL

    @property
    def address(self) -> str:
        """In the sandbox's network."""
        return str(self._subnet[2])

    @property
    def gateway(self) -> str:
        """Nobody's: it stands where an engine's host would be."""
        return str(self._subnet[1])

    async def greet(self, channel: Channel) -> None:
        await super().greet(channel)
        try:
            await self.allow(self._spec.allowed_hosts)
        except OSError as error:
            raise InfrastructureError("start", f"{self.sandbox_id}: {error.strerror}") from error

    async def _create(self) -> None:
        api = self.engine.client.api
        await self._engine(self.engine.image_config, self._spec.image)  # from here on it is kept
        self._subnet = await self._engine(make_network, api, self.sandbox_id, self._labels)
        await self._engine(api.create_container, name=self.sandbox_id, **self._options())
        await self._engine(api.connect_container_to_network, self.sandbox_id, EGRESS_NETWORK)

    def _options(self) -> dict[str, Any]:
        arguments = [f"address={self.address}", f"gateway={self.gateway}"]
        api = self.engine.client.api
        return {
            "image": self._spec.image,
            "entrypoint": ["python3", "-I", "-S", "-c", BOOTSTRAP],
            "command": [*arguments, *(f"mirror={mirror}" for mirror in self._mirrors)],
            "user": "65532",
            "hostname": "gate",
            "working_dir": "/",
            "stdin_open": True,
            "tty": False,
            "labels": dict(self._labels),
            "networking_config": self._endpoint(self.address),
            "host_config": api.create_host_config(
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                network_mode=self.sandbox_id,
                # Ports below 1024 without a capability; and it passes on what it understands,
                # it is no router.
                sysctls={"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ip_forward": "0"},
                dns_search=["."],  # no name gets the host's domain appended
                mem_limit=_MEMORY_MB << 20,
                memswap_limit=_MEMORY_MB << 20,
                nano_cpus=10**9,
                pids_limit=_PIDS,
                read_only=True,
                log_config={"type": "none"},
            ),
        }

    def _endpoint(self, address: str) -> Any:
        api = self.engine.client.api
        endpoint = api.create_endpoint_config(ipv4_address=address)
        return api.create_networking_config({self.sandbox_id: endpoint})

    def lead_through(self, options: dict[str, Any]) -> None:
        """Make the sandbox's options of create_container those of one behind this gate."""
        names = map(_plain, [*self._spec.allowed_hosts, *self._spec.later_hosts])
        proxy = f"http://{self.address}:{PROXY_PORT}"
        own = str(self._subnet[3])
        variables = {f"{scheme}_proxy": proxy for scheme in ("http", "https")}
        variables["no_proxy"] = f"{_LOOPBACK},{own}"
        variables |= {name.upper(): value for name, value in variables.items()}
        options["environment"] = {**variables, **options["environment"]}
        options["networking_config"] = self._endpoint(own)
        options["host_config"] |= {
            "NetworkMode": self.sandbox_id,
            "Dns": [self.address],
            "DnsSearch": ["."],
            "ExtraHosts": [f"{name}:{self.address}" for name in names if "*" not in name],
        }

    async def allow(self, hosts: Sequence[str]) -> None:
        await self._transfer((b"allow", *(_plain(host).encode() for host in hosts)))

    async def check(self) -> None:
        """Raises InfrastructureError where it is gone: what failed inside is then nobody's
        fault."""
        try:
            await self._transfer((b"ping",))
        except InfrastructureError as error:
            message = f"{self.sandbox_id}, which leads to the allowed hosts, is gone: {error}"
            raise InfrastructureError("exec_transport", message) from error

    async def answers(self) -> bool:
        try:
            await self.check()
        except InfrastructureError:
            return False
        return True

    async def _remove(self) -> None:
        from docker.errors import APIError
        from requests.exceptions import RequestException

        await super()._remove()
        try:
            await self._engine(remove_network, self.engine.client.api, self.sandbox_id)
        except (APIError, RequestException) as error:
            raise InfrastructureError("start", f"{self.sandbox_id}: {error}") from error
