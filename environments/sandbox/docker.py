"""Sandboxes as containers of a Docker engine, hardened, one attached stream each.

The agent server is the container's PID 1, so no exec is made per command (0.1 s each) and its
stream's end ends the container: the engine closes standard input when the harness is gone. What a
killed harness leaves are stopped containers; the next provider removes them by their labels.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from environments.protocols import ImageBuild, InfrastructureError, SandboxSpec
from environments.sandbox.cgroups import process_start
from environments.sandbox.channel import KILLED_EXIT_CODE, Channel, ChannelSandbox
from environments.sandbox.images import SCRATCH_LABEL, build_image, connect
from environments.sandbox.provider import Provider

LABEL = "thundersync."
_API_THREADS = 8
_API_LIMIT_S = 120
_END_LIMIT_S = 10.0
_BOOTSTRAP = """\
import os
size = int(os.read(0, 8))
source = b""
while len(source) < size:
    source += os.read(0, size - len(source)) or os._exit(0)
exec(compile(source, "agent_server", "exec"))"""
_STDOUT = 1
_Result = TypeVar("_Result")


class DemultiplexingReader:
    """Standard output out of an attached stream, in which the engine frames the output streams."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._buffer = bytearray()

    async def readexactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            header = await self._reader.readexactly(8)
            payload = await self._reader.readexactly(int.from_bytes(header[4:], "big"))
            if header[0] == _STDOUT:
                self._buffer += payload
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data


def owner_labels() -> dict[str, str]:
    """Who made a container: boot, pid namespace, pid and start time, so that no pid is mistaken."""
    return {
        f"{LABEL}pid": str(os.getpid()),
        f"{LABEL}pid_start": str(process_start(os.getpid())),
        f"{LABEL}pid_namespace": os.readlink("/proc/self/ns/pid"),
        f"{LABEL}boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    }


def is_orphan(labels: dict[str, str], state: str) -> bool:
    """Whether the harness of a container is certainly gone."""
    own = owner_labels()
    here = all(labels.get(key) == own[key] for key in (f"{LABEL}boot", f"{LABEL}pid_namespace"))
    if not here:  # another machine's or container's harness: ended ones only
        return state in ("exited", "dead")
    start = process_start(int(labels[f"{LABEL}pid"]))
    return str(start) != labels[f"{LABEL}pid_start"]


class DockerSandbox(ChannelSandbox):
    from_image = True

    def __init__(self, sandbox_id: str, provider: DockerProvider, spec: SandboxSpec) -> None:
        super().__init__(sandbox_id)
        self._provider = provider
        self._spec = spec
        self._call: asyncio.Future[Any] | None = None
        self._attached: Any = None  # keeps the HTTP response that owns the socket
        self._started_at = 0

    async def _engine(self, function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
        """One engine call in a thread; it cannot be cancelled: removal waits for it first."""
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(self._provider.threads, partial(function, *args, **kwargs))
        self._call = call
        return await asyncio.shield(call)

    async def launch(self) -> None:
        from docker.errors import APIError, ImageNotFound
        from requests.exceptions import RequestException

        api = self._provider.client.api
        if self._spec.build is not None:
            await self._provider.build(self._spec.image, self._spec.build)
        try:
            options = await self._engine(self._provider.container_options, self._spec)
            await self._engine(api.create_container, name=self.sandbox_id, **options)
            self._attached = await self._engine(
                api.attach_socket,
                self.sandbox_id,
                params={"stdin": 1, "stdout": 1, "stderr": 0, "stream": 1},
            )
            reader, writer = await asyncio.open_connection(sock=self._attached._sock, limit=1 << 20)
            self._started_at = int(time.time())  # the engine's events are asked for by date
            await self._engine(api.start, self.sandbox_id)
            source = self._provider.server  # sent, so that `ps` inside stays readable
            writer.write(b"%8d" % len(source) + source)
        except ImageNotFound as error:
            raise InfrastructureError(
                "image", f"{self._spec.image}: {error.explanation}"
            ) from error
        except (APIError, RequestException) as error:
            raise InfrastructureError("start", f"{self.sandbox_id}: {error}") from error
        await self.greet(Channel(DemultiplexingReader(reader), writer))

    async def _remove(self) -> None:
        from docker.errors import APIError
        from requests.exceptions import RequestException

        if self._call is not None and not self._call.done():
            await asyncio.wait([self._call])
        try:
            await self._engine(remove_container, self._provider.client.api, self.sandbox_id)
        except (APIError, RequestException) as error:
            raise InfrastructureError("start", f"{self.sandbox_id}: {error}") from error
        finally:
            if self._attached is not None:
                self._attached.close()

    async def _state(self) -> dict[str, Any]:
        details = await self._engine(self._provider.client.api.inspect_container, self.sandbox_id)
        return details["State"]

    async def _ran_out_of_memory(self) -> bool:
        from docker.errors import APIError
        from requests.exceptions import RequestException

        api = self._provider.client.api
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
        events = self._provider.client.api.events(
            since=self._started_at - 1, until=until, filters=filters, decode=True
        )
        return list(events)


def remove_container(api: Any, name: str) -> None:
    """Kill and remove with its volumes, and see that it is gone; one that never was is fine."""
    from docker.errors import APIError, NotFound

    give_up = time.monotonic() + _END_LIMIT_S
    while True:
        try:
            api.remove_container(name, v=True, force=True)
        except NotFound:
            return
        except APIError as error:
            conflict = error.response is not None and error.response.status_code == 409
            if not conflict or time.monotonic() > give_up:
                raise
            time.sleep(0.05)  # a removal by somebody else is in progress


class DockerProvider(Provider):
    kind = "docker"

    def __init__(self, client: Any, *, run_id: str, max_parallel: int, why: str) -> None:
        super().__init__(run_id=run_id, max_parallel=max_parallel, why=why)
        self.client = client
        self.threads = ThreadPoolExecutor(_API_THREADS, thread_name_prefix="docker-api")
        self._token = secrets.token_hex(4)
        self._labels = {
            f"{LABEL}run": run_id,
            f"{LABEL}provider": self._token,
            **owner_labels(),
        }
        self.server = Path(__file__).with_name("agent_server.py").read_bytes()
        self._scratch: dict[str, str] = {}
        self._builds: dict[str, asyncio.Task[None]] = {}

    @classmethod
    async def open(cls, *, run_id: str, max_parallel: int, why: str) -> DockerProvider:
        client = await asyncio.to_thread(connect, _API_LIMIT_S)
        provider = cls(client, run_id=run_id, max_parallel=max_parallel, why=why)
        await asyncio.to_thread(provider.reap)
        return provider

    def reap(self) -> int:
        """Remove the containers of harnesses that are gone; returns how many."""
        listed = self.client.api.containers(all=True, filters={"label": f"{LABEL}pid_start"})
        orphans = [entry for entry in listed if is_orphan(entry["Labels"], entry["State"])]
        for entry in orphans:
            remove_container(self.client.api, entry["Id"])
        return len(orphans)

    def _new(self, spec: SandboxSpec, number: int) -> DockerSandbox:
        return DockerSandbox(f"thundersync-{self._token}-{number}", self, spec)

    async def _launch(self, sandbox: ChannelSandbox) -> None:
        assert isinstance(sandbox, DockerSandbox)
        await sandbox.launch()

    async def build(self, image: str, build: ImageBuild) -> None:
        """Make an image that the engine lacks, once however many sandboxes wait for it; one that
        failed is tried again by the next sandbox that asks. Raises InfrastructureError."""
        running = self._builds.get(image)
        if running is None or (running.done() and running.exception() is not None):
            running = asyncio.create_task(asyncio.to_thread(build_image, image, build))
            self._builds[image] = running
        await asyncio.shield(running)

    async def _close(self) -> None:
        await asyncio.gather(*self._builds.values(), return_exceptions=True)
        await asyncio.to_thread(self._close_client)

    def _close_client(self) -> None:
        from docker.errors import APIError
        from requests.exceptions import RequestException

        try:
            # Where the engine is gone, the count of those that could not be removed stands.
            with contextlib.suppress(APIError, RequestException):
                self.counters.leaked = len(self._left())
        finally:
            self.threads.shutdown(wait=False)
            self.client.close()

    def _left(self) -> list[Any]:
        return self.client.api.containers(
            all=True, filters={"label": f"{LABEL}provider={self._token}"}
        )

    def container_options(self, spec: SandboxSpec) -> dict[str, Any]:
        """Arguments of create_container."""
        from docker.types import Ulimit

        scratch_path = self._scratch_of(spec.image)
        user = spec.user.partition(":")[0]
        owner = f",uid={user},gid={user}" if user.isdigit() else ""
        mount = f"rw,exec,nosuid,nodev,size={spec.scratch_mb}m,mode=0777{owner}"
        tmpfs = dict.fromkeys(spec.scratch_paths, mount)
        if scratch_path == spec.workdir:
            tmpfs[spec.workdir] = mount
        binds = {
            outside: {"bind": inside, "mode": "ro"}
            for outside, inside in spec.read_only_binds.items()
        }
        api = self.client.api
        file_bytes = (spec.file_mb or 0) << 20
        limits = [Ulimit(name="fsize", soft=file_bytes, hard=file_bytes)] if file_bytes else []
        workdir = spec.workdir or self._image_config(spec.image)["WorkingDir"] or "/"
        return {
            "image": spec.image,
            "entrypoint": ["python3", "-I", "-S", "-c", _BOOTSTRAP],
            "command": [f"workdir={workdir}"],
            "user": spec.user,
            "hostname": "sandbox",
            "working_dir": "/",
            "stdin_open": True,
            "tty": False,
            "labels": self._labels,
            "environment": {
                "HOME": "/tmp",
                "LANG": "C.UTF-8",
                "TERM": "dumb",
                **spec.environment,
            },
            "host_config": api.create_host_config(
                binds=binds,
                cap_drop=["ALL"],
                cap_add=list(spec.capabilities),
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

    def _scratch_of(self, image: str) -> str:
        """The empty directory that an image's label offers as scratch; '' where there is none."""
        if image not in self._scratch:
            labels = self._image_config(image)["Labels"] or {}
            self._scratch[image] = labels.get(SCRATCH_LABEL, "")
        return self._scratch[image]

    def _image_config(self, image: str) -> dict[str, Any]:
        return self.client.api.inspect_image(image)["Config"]
