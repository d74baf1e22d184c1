"""One Docker engine: its client, threads for its calls, and whether it has been there all the time.

A request of events is kept open to it. Its end is how a stop of the engine is noticed at once and
never missed: a container that the engine itself ended must not be taken for the agent's doing, and
once the engine is back nothing in its state tells the two apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from environments.protocols import ImageBuild, InfrastructureError
from environments.sandbox.images import SCRATCH_LABEL, build_image, connect
from environments.sandbox.tls import PLAIN_PORT, context_for

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
_API_THREADS = 16
_API_LIMIT_S = 120
_CONNECT_LIMIT_S = 5.0
_RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)
# Of daemons alone: a stream that is silent as long as the engine lives.
_EVENTS = "GET /events?filters=%7B%22type%22%3A%5B%22daemon%22%5D%7D"
_STREAM_BYTES = 1 << 20  # buffered of one stream, at most twice
_Result = TypeVar("_Result")


class Engine:
    """Opened by `open`; raises InfrastructureError where it does not answer."""

    def __init__(self, address: str, client: Any) -> None:
        self.address = address
        self.client = client
        self._tls = context_for(address)
        self.threads = ThreadPoolExecutor(_API_THREADS, thread_name_prefix="docker-api")
        self.losses = 0  # how many times it has gone away
        self.up = True
        self.on_change: Callable[[Engine], None] = lambda _: None
        self.free_mb: int | None = None  # below its data root, as last seen
        self._data_root: Path | None = None
        self._configs: dict[str, dict[str, Any]] = {}
        self._builds: dict[str, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, address: str | None) -> Engine:
        client = await asyncio.to_thread(connect, _API_LIMIT_S, address)
        engine = cls(address or os.environ.get("DOCKER_HOST") or DEFAULT_ADDRESS, client)
        root = Path((await engine.call(client.api.info))["DockerRootDir"])
        if engine.address.startswith("unix:") and root.is_dir():
            engine._data_root = root
        try:
            events = await engine._connect()
        except OSError as error:
            await engine.close()
            raise InfrastructureError("start", f"{engine.address}: {error}") from error
        engine._watching = asyncio.create_task(engine._watch(*events))
        return engine

    async def call(self, function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
        return await self.submit(function, *args, **kwargs)

    def submit(
        self, function: Callable[..., _Result], *args: Any, **kwargs: Any
    ) -> asyncio.Future[_Result]:
        """One engine call in a thread."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self.threads, partial(function, *args, **kwargs))

    # --- its presence ---------------------------------------------------------------------------

    async def stream(
        self, request: str, *headers: str, within_s: float = _API_LIMIT_S
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of its own, behind the headers of the answer to `request` (method and path):
        over the socket, TCP or TLS. The docker package's own streams are blocking, and one behind
        TLS cannot be handed to an event loop. Raises OSError."""
        parts = urlsplit(self.address)
        async with asyncio.timeout(within_s):  # TimeoutError is an OSError
            if parts.scheme == "unix":
                opening = asyncio.open_unix_connection(parts.path, limit=_STREAM_BYTES)
            else:
                opening = asyncio.open_connection(
                    parts.hostname,
                    parts.port or PLAIN_PORT,
                    ssl=self._tls,
                    limit=_STREAM_BYTES,
                )
            reader, writer = await opening
            _keep_alive(writer.get_extra_info("socket"))
            try:
                lines = (f"{request} HTTP/1.1", "Host: docker", *headers, "", "")
                writer.write("\r\n".join(lines).encode())
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError as error:
                writer.transport.abort()
                raise ConnectionResetError(f"connection reset: no answer to {request}") from error
            except BaseException:
                writer.transport.abort()
                raise
        status = head.partition(b"\r\n")[0].split(maxsplit=2)[1:]
        if status[:1] not in ([b"200"], [b"101"]):
            writer.transport.abort()
            raise OSError(f"it answers {b' '.join(status).decode('latin-1')} to {request}")
        return reader, writer

    async def attach(self, container: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Standard input and output of a container that was created. Raises OSError."""
        path = f"/v{self.client.api.api_version}/containers/{container}/attach"
        return await self.stream(
            f"POST {path}?stdin=1&stdout=1&stream=1",
            *("Connection: Upgrade", "Upgrade: tcp", "Content-Length: 0"),
        )

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self.stream(_EVENTS, within_s=_CONNECT_LIMIT_S)

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                with contextlib.suppress(OSError):
                    while await reader.read(4096):
                        pass
            finally:
                writer.close()
            self.losses += 1
            self._set_up(False)
            reader, writer = await self._reconnect()
            self._set_up(True)

    async def _reconnect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        attempt = 0
        while True:
            await asyncio.sleep(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])
            attempt += 1
            with contextlib.suppress(OSError):  # TimeoutError is one
                return await self._connect()

    def _set_up(self, up: bool) -> None:
        self.up = up
        self.on_change(self)

    # --- images ---------------------------------------------------------------------------------

    async def build(self, image: str, build: ImageBuild) -> None:
        """Make an image that the engine lacks, once however many sandboxes wait for it; one that
        failed is tried again by the next sandbox that asks. Raises InfrastructureError."""
        running = self._builds.get(image)
        if running is None or (running.done() and running.exception() is not None):
            work = asyncio.to_thread(build_image, image, build, self.address)
            running = self._builds[image] = asyncio.create_task(work)
        await asyncio.shield(running)

    def image_config(self, image: str) -> dict[str, Any]:
        """Blocking. Kept: an image is not rebuilt under a run."""
        if image not in self._configs:
            self._configs[image] = self.client.api.inspect_image(image)["Config"]
        return self._configs[image]

    def scratch_of(self, image: str) -> str:
        """The empty directory that an image's label offers as scratch; '' where there is none."""
        return (self.image_config(image)["Labels"] or {}).get(SCRATCH_LABEL, "")

    # --- disk -----------------------------------------------------------------------------------

    @property
    def sees_disk(self) -> bool:
        """Whether the data root can be looked at from here; else a sandbox has to say."""
        return self._data_root is not None

    def look_at_disk(self) -> int | None:
        """Free megabytes below the data root; the last known where that is another machine's."""
        if self._data_root is not None:
            self.free_mb = shutil.disk_usage(self._data_root).free >> 20
        return self.free_mb

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await asyncio.gather(*self._builds.values(), return_exceptions=True)
        self.threads.shutdown(wait=False)
        await asyncio.to_thread(self.client.close)


def _keep_alive(connection: Any) -> None:
    """Let the kernel notice within half a minute that the other machine is gone."""
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
