"""Sandboxes from Linux namespaces by bubblewrap: no daemon, no image, a start of some 25 ms.

Run as root, bwrap sets the sandbox up with root's rights and the server inside then changes to user
65532 for good; run as anybody else, a user namespace maps that one user to 65532. (Root mapped into
a user namespace would still be the machine's root to files like /proc/sys/kernel/core_pattern.)

Inside are the host's system directories and this interpreter read-only, a scratch tmpfs each for
the workdir and /tmp, its own process, network, mount, user and IPC namespaces, no capabilities.

Limits come from control groups where they are writable (as root, or delegated by systemd). Else the
server inside counts processes and memory of its namespace every 50 ms and kills, RLIMIT_DATA bounds
each process and, for an ordinary user on Linux 5.14 or newer, RLIMIT_NPROC the number of processes
(counted per user namespace since then); CPU is then bounded by each command's timeout alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from environments.protocols import InfrastructureError, SandboxSpec
from environments.sandbox.bubblewrap_command import (
    find_bwrap,
    sandbox_command,
    system_arguments,
    unusable_reason,
)
from environments.sandbox.cgroups import (
    Group,
    Limits,
    enter_script,
    find_groups,
)
from environments.sandbox.channel import KILLED_EXIT_CODE, Channel, ChannelClosed, ChannelSandbox
from environments.sandbox.ownership import folder_prefix, reap_folders
from environments.sandbox.places import Place, Places
from environments.sandbox.provider import Provider

__all__ = ["BubblewrapProvider", "BubblewrapSandbox", "find_bwrap", "unusable_reason"]

_STOP_LIMIT_S = 10.0
_POLITE_END_S = 2.0


class BubblewrapSandbox(ChannelSandbox):
    def __init__(self, sandbox_id: str, provider: BubblewrapProvider, spec: SandboxSpec) -> None:
        super().__init__(sandbox_id)
        self._provider = provider
        self._spec = spec
        self._group: Group | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._server_pidfd: int | None = None
        self._watch: asyncio.Task[None] | None = None

    async def launch(self) -> None:
        """Start bwrap and wait for the server; raises ChannelClosed with what bwrap said."""
        spec = self._spec
        if self._provider.groups is not None:
            own = 2  # bwrap and the server are not the agent's
            limits = Limits(memory_mb=spec.memory_mb, pids=spec.pids + own, cpus=spec.cpus)
            try:
                self._group = self._provider.groups.make(self.sandbox_id, limits)
            except OSError as error:
                raise InfrastructureError("start", f"no control group: {error}") from error
        command = self._provider.command(spec, self._group)
        if self._group is not None:
            command = ["/bin/sh", "-c", enter_script(self._group) + ' && exec "$@"', "sh", *command]
        ours, theirs = socket.socketpair()
        error_reader, error_writer = os.pipe()
        os.set_blocking(error_reader, False)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=error_writer,
                env={},
                start_new_session=True,  # a Ctrl-C is the harness's to handle
            )
        except OSError as error:
            ours.close()
            os.close(error_reader)
            raise InfrastructureError("start", f"{command[0]}: {error.strerror}") from error
        finally:
            theirs.close()
            os.close(error_writer)
        try:
            reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
            channel = Channel(reader, writer)
            await self.greet(channel)
            self._server_pidfd = self._open_server()
            self._watch = asyncio.create_task(self._close_with_bwrap(channel))
        except ChannelClosed as error:
            with contextlib.suppress(BlockingIOError):
                said = os.read(error_reader, 4096).decode("utf-8", "replace").strip()
                raise ChannelClosed(said or str(error)) from error
            raise
        except asyncio.CancelledError:
            ours.close()
            raise
        finally:
            os.close(error_reader)

    async def _close_with_bwrap(self, channel: Channel) -> None:
        """Where bwrap is killed alone, tell the server by the end of its stream: the kernel does
        not let bwrap's death signal through to a server that has changed its user."""
        await self._bwrap_ended()
        channel.close()

    @property
    def pid(self) -> int | None:
        """Of bwrap, outside."""
        return self._process.pid if self._process is not None else None

    def _open_server(self) -> int | None:
        """A handle on the PID 1 inside, which is the only child of bwrap."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        pids = children.read_text().split() if children.exists() else []
        with contextlib.suppress(ProcessLookupError):
            return os.pidfd_open(int(pids[0])) if pids else None
        return None

    async def _bwrap_ended(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            with os.fdopen(os.pidfd_open(process.pid)) as handle:
                await _readable(handle.fileno())
            process.wait()

    async def _ended(self, within_s: float) -> bool:
        """Whether bwrap and the PID 1 inside have ended; that one ends as the last one inside."""
        try:
            async with asyncio.timeout(within_s):
                await self._bwrap_ended()
                if self._server_pidfd is not None:
                    await _readable(self._server_pidfd)
        except TimeoutError:
            return False
        return True

    def _kill(self) -> None:
        """SIGKILL to bwrap and to the PID 1 inside, which takes its namespace along."""
        if self._process is None:
            return
        if self._server_pidfd is None:
            self._server_pidfd = self._open_server()
        if self._process.poll() is None:
            # The group, because bwrap may be forking: its child leaves the group only later.
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._server_pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._server_pidfd, signal.SIGKILL)

    async def _remove(self) -> None:
        try:
            if self._channel is None:
                self._kill()
            if not await self._ended(_POLITE_END_S):  # the server leaves at the end of its stream
                self._kill()
                if not await self._ended(_STOP_LIMIT_S):
                    message = f"{self.sandbox_id}: pid {self.pid} does not end"
                    raise InfrastructureError("start", message)
        except BaseException:
            self._kill()
            raise
        if self._watch is not None:
            await self._watch
        if self._server_pidfd is not None:
            os.close(self._server_pidfd)
            self._server_pidfd = None
        if self._group is not None:
            await self._remove_group(self._group)

    async def _remove_group(self, group: Group) -> None:
        try:
            async with asyncio.timeout(_STOP_LIMIT_S):
                while not group.remove():  # the kernel lets go a moment after the last process
                    await asyncio.sleep(0.001)
                    group.kill()
        except TimeoutError as error:
            message = f"{self.sandbox_id}: {group.memory} cannot be removed"
            raise InfrastructureError("start", message) from error

    async def _ran_out_of_memory(self) -> bool:
        return self._group is not None and self._group.ran_out_of_memory()

    async def _engine_trouble(self) -> str:
        if not await self._ended(_POLITE_END_S):
            return f"{self.sandbox_id} does not answer"
        code = self._process.returncode if self._process is not None else 0
        if code < 0:
            return f"{self.sandbox_id} was killed from outside"
        return "" if code == KILLED_EXIT_CODE else f"{self.sandbox_id} ended with {code}"


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


class BubblewrapProvider(Provider):
    kind = "bubblewrap"

    def __init__(
        self,
        *,
        bwrap: str,
        run_id: str,
        max_parallel: int,
        why: str,
        start_parallel: int | None = None,
        exec_parallel: int | None = None,
    ) -> None:
        super().__init__(
            run_id=run_id,
            places=Places([Place("this machine", max_parallel)], max_parallel),
            why=why,
            start_parallel=start_parallel,
            exec_parallel=exec_parallel,
        )
        self._bwrap = bwrap
        self.groups, self.limits_by = find_groups()
        if self.groups is not None:
            self.groups.reap()
        reap_folders()
        self.files = Path(tempfile.mkdtemp(prefix=folder_prefix("bwrap")))
        self.files.chmod(0o755)
        self._system = system_arguments(self.files)

    def _new(self, spec: SandboxSpec, number: int, place: Place) -> BubblewrapSandbox:
        return BubblewrapSandbox(f"{self.run_id}-{number}".replace("/", "-"), self, spec)

    async def _launch(self, sandbox: ChannelSandbox) -> None:
        assert isinstance(sandbox, BubblewrapSandbox)
        await sandbox.launch()

    async def _close(self) -> None:
        shutil.rmtree(self.files, ignore_errors=True)

    def command(self, spec: SandboxSpec, group: Group | None) -> list[str]:
        return sandbox_command(self._bwrap, self._system, spec, group)
