"""One sandbox as a container, hardened, with one attached stream.

The agent server is the container's PID 1, so no exec is made per command (0.1 s each) and its
stream's end ends the container: the engine closes standard input when the harness is gone. What a
killed harness leaves are stopped containers; the next provider removes them by their labels.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from environments.protocols import ExecResult, InfrastructureError, SandboxSpec
from environments.sandbox.backoff import TemporaryError, start_error
from environments.sandbox.channel import (
    KILLED_EXIT_CODE,
    Channel,
    ChannelClosed,
    ChannelSandbox,
)
from environments.sandbox.engine import Engine
from environments.sandbox.leftovers import anonymous_volumes, remove_container

if TYPE_CHECKING:
    from environments.sandbox.gate import Gate

_END_LIMIT_S = 10.0
# Of a server that starts commands of two users, ends both's, and gives the second its folders.
_FOR_TWO_USERS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
BOOTSTRAP = """\
import os
size = int(os.read(0, 8))
source = b""
while len(source) < size:
    source += os.read(0, size - len(source)) or os._exit(0)
exec(compile(source, "agent_server", "exec"))"""
_SERVER = Path(__file__).with_name("agent_server.py").read_bytes()
_STDOUT = 1
_Result = TypeVar("_Result")


class DemultiplexingReader:
    """Standard output out of an attached stream, in which the engine frames the output streams."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._buffer = bytearray()

    def at_eof(self) -> bool:
        return not self._buffer and self._reader.at_eof()

    async def readexactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            header = await self._reader.readexactly(8)
            payload = await self._reader.readexactly(int.from_bytes(header[4:], "big"))
            if header[0] == _STDOUT:
                self._buffer += payload
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data


class DockerSandbox(ChannelSandbox):
    from_image = True
    source: ClassVar[bytes] = _SERVER

    def __init__(
        self,
        sandbox_id: str,
        engine: Engine,
        spec: SandboxSpec,
        labels: Mapping[str, str],
        gate: Gate | None = None,
    ) -> None:
        super().__init__(sandbox_id)
        self.engine = engine
        self.gate = gate  # its only way out, where the spec allows hosts
        self._spec = spec
        self._labels = labels
        self._losses = engine.losses
        self._call: asyncio.Future[Any] | None = None
        self._attached: asyncio.StreamWriter | None = None
        self._volumes: list[str] = []
        self._started_at = 0

    async def _engine(self, function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
        """One engine call; it cannot be cancelled: removal waits for it first."""
        call = self.engine.submit(function, *args, **kwargs)
        self._call = call
        return await asyncio.shield(call)

    async def launch(self) -> None:
        from docker.errors import APIError
        from requests.exceptions import RequestException

        if self._spec.build is not None:
            await self.engine.build(self._spec.image, self._spec.build)
        try:
            if self.gate is not None:
                await self.gate.launch()
            channel = await self._start_attached()
        except (APIError, RequestException, OSError) as error:
            raise start_error(f"{self.sandbox_id} ({self._spec.image})", error) from error
        try:
            await self.greet(channel)
        except ChannelClosed as error:
            if self.engine.losses != self._losses or not self.engine.up:
                raise TemporaryError("start", f"{self.sandbox_id}: its engine went away") from error
            raise

    async def _create(self) -> None:
        api = self.engine.client.api
        options = await self._engine(container_options, self.engine, self._spec, self._labels)
        if self.gate is not None:
            self.gate.lead_through(options)
        await self._engine(api.create_container, name=self.sandbox_id, **options)

    async def _start_attached(self) -> Channel:
        api = self.engine.client.api
        await self._create()
        if self.engine.image_config(self._spec.image).get("Volumes"):
            details = await self._engine(api.inspect_container, self.sandbox_id)
            self._volumes = anonymous_volumes(details["Mounts"])
        reader, writer = await self.engine.attach(self.sandbox_id)
        self._attached = writer
        self._started_at = int(time.time())  # the engine's events are asked for by date
        await self._engine(api.start, self.sandbox_id)
        # Sent, so that `ps` inside stays readable.
        writer.write(b"%8d" % len(self.source) + self.source)
        return Channel(DemultiplexingReader(reader), writer)

    # --- its gate -------------------------------------------------------------------------------

    async def exec(
        self, command: str, *, timeout_s: float, max_output_bytes: int = 65536
    ) -> ExecResult:
        result = await super().exec(command, timeout_s=timeout_s, max_output_bytes=max_output_bytes)
        if self.gate is not None:  # without it a command may have failed for no fault of its own
            await self.gate.check()
        return result

    async def answers(self) -> bool:
        return await super().answers() and (self.gate is None or await self.gate.answers())

    async def allow_hosts(self, hosts: Sequence[str]) -> None:
        if self.gate is not None:
            await self.gate.allow(hosts)
        elif hosts:
            await super().allow_hosts(hosts)

    async def hand_over(self, folders: Sequence[str]) -> None:
        if self._spec.later_user is None:
            await super().hand_over(folders)
        await self._transfer((b"hand_over", *map(os.fsencode, folders)))

    # --- the end --------------------------------------------------------------------------------

    async def _remove(self) -> None:
        from docker.errors import APIError
        from requests.exceptions import RequestException

        if self._call is not None and not self._call.done():
            await asyncio.wait([self._call])
        api = self.engine.client.api
        try:
            await self._engine(remove_container, api, self.sandbox_id, self._volumes)
        except (APIError, RequestException) as error:
            raise InfrastructureError("start", f"{self.sandbox_id}: {error}") from error
        finally:
            if self._attached is not None:
                self._attached.transport.abort()
        if self.gate is not None:
            await self.gate.stop()

    async def _state(self) -> dict[str, Any]:
        details = await self._engine(self.engine.client.api.inspect_container, self.sandbox_id)
        return details["State"]

    async def _ran_out_of_memory(self) -> bool:
        from docker.errors import APIError
        from requests.exceptions import RequestException

        api = self.engine.client.api
        try:
            await self._engine(api.wait, self.sandbox_id, timeout=_END_LIMIT_S)
            return bool((await self._state())["OOMKilled"])
        except (APIError, RequestException):
            return False  # _engine_trouble says what it is

    async def _engine_trouble(self) -> str:
        from docker.errors import APIError
        from requests.exceptions import RequestException

        try:
            state = await self._state()
            kills = await self._engine(self._kills_through_the_engine)
        except (APIError, RequestException) as error:
            return f"{self.sandbox_id}: {error}"
        if self.engine.losses != self._losses or not self.engine.up:
            return f"the engine of {self.sandbox_id} ({self.engine.address}) went away"
        if state["Running"]:
            return f"{self.sandbox_id} does not answer"
        if kills:
            return f"{self.sandbox_id} was killed through the engine"
        code = state["ExitCode"]
        return (
            "" if code == KILLED_EXIT_CODE else f"the server of {self.sandbox_id} ended with {code}"
        )

    def _kills_through_the_engine(self) -> list[Any]:
        filters = {"container": self.sandbox_id, "event": "kill"}
        until = int(time.time()) + 1
        events = self.engine.client.api.events(
            since=self._started_at - 1, until=until, filters=filters, decode=True
        )
        return list(events)


def container_options(
    engine: Engine, spec: SandboxSpec, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Arguments of create_container. Blocking where the image was not looked at yet."""
    from docker.types import Ulimit

    scratch_path = engine.scratch_of(spec.image)
    user = spec.user.partition(":")[0]
    owner = f",uid={user},gid={user}" if user.isdigit() else ""
    mount = f"rw,exec,nosuid,nodev,size={spec.scratch_mb}m,mode=0777{owner}"
    tmpfs = dict.fromkeys(spec.scratch_paths, mount)
    if scratch_path == spec.workdir:
        tmpfs[spec.workdir] = mount
    binds = {
        outside: {"bind": inside, "mode": "ro"} for outside, inside in spec.read_only_binds.items()
    }
    file_bytes = (spec.file_mb or 0) << 20
    limits = [Ulimit(name="fsize", soft=file_bytes, hard=file_bytes)] if file_bytes else []
    workdir = spec.workdir or engine.image_config(spec.image)["WorkingDir"] or "/"
    environment = {"HOME": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb", **spec.environment}
    server, runs_as, capabilities = [f"workdir={workdir}"], spec.user, set(spec.capabilities)
    if spec.later_user is not None:
        own = engine.image_config(spec.image).get("User") or "0"
        server += [f"user={spec.user or own}", f"later_user={spec.later_user or own}"]
        runs_as = "0:0"
        capabilities |= {*_FOR_TWO_USERS}
    return {
        "image": spec.image,
        "entrypoint": ["python3", "-I", "-S", "-c", BOOTSTRAP],
        "command": server,
        "user": runs_as,
        "hostname": "sandbox",
        "working_dir": "/",
        "stdin_open": True,
        "tty": False,
        "labels": dict(labels),
        "environment": environment,
        "host_config": engine.client.api.create_host_config(
            binds=binds,
            cap_drop=["ALL"],
            cap_add=sorted(capabilities),
            ulimits=limits,
            security_opt=["no-new-privileges"],
            network_mode=spec.network,
            mem_limit=spec.memory_mb << 20,
            memswap_limit=spec.memory_mb << 20,
            nano_cpus=int(spec.cpus * 1e9),
            pids_limit=spec.pids + 1,  # the server is not the agent's
            read_only=scratch_path == spec.workdir,
            shm_size=16 << 20,
            tmpfs=tmpfs,
            log_config={"type": "none"},
        ),
    }
