"""Sandboxes as containers, on one Docker engine or spread over several."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Any

from environments.protocols import InfrastructureError, SandboxSpec
from environments.sandbox import leftovers
from environments.sandbox.channel import ChannelSandbox
from environments.sandbox.container import DockerSandbox
from environments.sandbox.engine import Engine
from environments.sandbox.gate import Gate
from environments.sandbox.ownership import LABEL, owner_labels, reap_folders
from environments.sandbox.places import Place, Places
from environments.sandbox.provider import Provider

_PROVIDER_LABEL = f"{LABEL}provider"
_DISK_LOOK_S = 30.0  # for another machine's disk, which a sandbox there has to look at
_FREE_BLOCKS = "stat -f -c '%a %S' /"


class DockerProvider(Provider):
    """Every engine is a place of its own limit. One that goes away takes nothing new until it
    answers again: what ran there fails as infrastructure, and is removed then or at close."""

    kind = "docker"

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        run_id: str,
        max_parallel: int,
        why: str,
        host_parallel: Sequence[int] = (),
        start_parallel: int | None = None,
        exec_parallel: int | None = None,
        disk_free_mb: int = 0,
        mirrors: Sequence[str] = (),
    ) -> None:
        limits = host_parallel or [max_parallel] * len(engines)
        self.engines = {
            Place(engine.address, limit): engine
            for engine, limit in zip(engines, limits, strict=True)
        }
        super().__init__(
            run_id=run_id,
            places=Places(list(self.engines), max_parallel),
            why=why,
            start_parallel=start_parallel,
            exec_parallel=exec_parallel,
        )
        self.reaped: dict[str, int] = {}
        self._disk_free_mb = disk_free_mb
        self._mirrors = mirrors
        self._disk_seen_s: dict[Place, float] = {}
        self._token = secrets.token_hex(4)
        self._labels = {f"{LABEL}run": run_id, _PROVIDER_LABEL: self._token, **owner_labels()}
        self._mending: set[asyncio.Task[None]] = set()
        for engine in engines:
            engine.on_change = self._engine_changed

    @classmethod
    async def open(
        cls, *, run_id: str, max_parallel: int, why: str, hosts: Sequence[str] = (), **limits: Any
    ) -> DockerProvider:
        """`hosts` are addresses of engines; none means the one that DOCKER_HOST names, or the local
        one. Removes what dead runs have left on them. Raises InfrastructureError."""
        engines: list[Engine] = []
        try:
            for host in hosts or [None]:
                engines.append(await Engine.open(host))
            provider = cls(engines, run_id=run_id, max_parallel=max_parallel, why=why, **limits)
            await provider._reap()
        except BaseException:
            await asyncio.gather(*(engine.close() for engine in engines))
            raise
        return provider

    async def _reap(self) -> None:
        self.reaped = {"folders": await asyncio.to_thread(reap_folders)}
        found = await asyncio.gather(
            *(engine.call(leftovers.reap, engine.client.api) for engine in self.engines.values())
        )
        for counts in found:
            for kind, number in counts.items():
                self.reaped[kind] = self.reaped.get(kind, 0) + number

    @property
    def client(self) -> Any:
        """Of the first engine."""
        return next(iter(self.engines.values())).client

    def _engine_changed(self, engine: Engine) -> None:
        place = next(place for place, its in self.engines.items() if its is engine)
        self.places.set_open(place, engine.up)
        if not engine.up:
            self.counters.engine_losses += 1
        else:
            mending = asyncio.create_task(self.remove_left(place))
            self._mending.add(mending)
            mending.add_done_callback(self._mending.discard)

    def _new(self, spec: SandboxSpec, number: int, place: Place) -> DockerSandbox:
        name = f"thundersync-{self._token}-{number}"
        engine, gate = self.engines[place], None
        if spec.allowed_hosts or spec.later_hosts:
            gate = Gate(f"{name}-gate", engine, spec, self._labels, self._mirrors)
        return DockerSandbox(name, engine, spec, self._labels, gate)

    async def _launch(self, sandbox: ChannelSandbox) -> None:
        assert isinstance(sandbox, DockerSandbox)
        place = self._living[sandbox]
        await self._check_disk(place)
        await sandbox.launch()
        if self._disk_free_mb and not sandbox.engine.sees_disk and self._disk_is_old(place):
            result = await sandbox.exec(_FREE_BLOCKS, timeout_s=10.0)
            blocks, _, size = result.output.strip().partition(" ")
            if blocks.isdigit() and size.isdigit():
                sandbox.engine.free_mb = int(blocks) * int(size) >> 20
                self._disk_seen_s[place] = time.monotonic()

    def _disk_is_old(self, place: Place) -> bool:
        return time.monotonic() - self._disk_seen_s.get(place, -_DISK_LOOK_S) >= _DISK_LOOK_S

    async def _check_disk(self, place: Place) -> None:
        """Below the watermark nothing new starts, so that what runs can end."""
        engine = self.engines[place]
        if not self._low_on_disk(engine) or (not engine.sees_disk and self._disk_is_old(place)):
            return
        cleaned = await engine.call(leftovers.clean, engine.client.api)
        if self._low_on_disk(engine):
            removed = ", ".join(f"{number} {kind}" for kind, number in cleaned.items())
            raise InfrastructureError(
                "disk",
                f"{engine.address}: {engine.free_mb} MB are free below its data root, "
                f"sandbox.disk_free_mb={self._disk_free_mb} (cleaned up: {removed})",
            )

    def _low_on_disk(self, engine: Engine) -> bool:
        free_mb = engine.look_at_disk() if self._disk_free_mb else None
        return free_mb is not None and free_mb < self._disk_free_mb

    async def _close(self) -> None:
        await asyncio.gather(*self._mending)
        left = await asyncio.gather(*(self._left(place) for place in self.engines))
        self.counters.leaked = sum(left)
        await asyncio.gather(*(engine.close() for engine in self.engines.values()))

    async def _left(self, place: Place) -> int:
        """How many of this provider's containers and networks an engine still has; where it is
        gone, how many sandboxes could not be removed."""
        from docker.errors import APIError
        from requests.exceptions import RequestException

        engine = self.engines[place]
        filters = {"label": f"{_PROVIDER_LABEL}={self._token}"}
        try:
            api = engine.client.api
            containers = await engine.call(api.containers, all=True, filters=filters)
            networks = await engine.call(api.networks, filters=filters)
            return len(containers) + len(networks)
        except (APIError, RequestException):
            return sum(where is place for where in self._living.values())
