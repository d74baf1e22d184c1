"""The host's end of a sandbox: framed requests over one byte stream to the agent server inside.

Nothing that comes out of a sandbox is trusted: answers are length-checked bytes, decoded only where
a reader needs text, and an answer that breaks the protocol condemns the sandbox, not the harness.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from environments.protocols import ExecResult, InfrastructureError
from environments.sandbox import archive

MAX_GET_BYTES = 256 << 20
_SLACK_BYTES = 65536
_ENOSPC = 28
# Over the command's own limit: what a sandbox may need to kill a crowd on a loaded machine.
_ANSWER_GRACE_S = 60.0
_START_LIMIT_S = 60.0
_READY_LIMIT_S = 10.0
KILLED_EXIT_CODE = 137  # of a server that got SIGKILL or ran out of memory

Fields = Sequence[bytes]


class ChannelClosed(Exception):
    """The other end is gone or does not keep to the protocol."""


def encode_frame(fields: Sequence[bytes | memoryview]) -> bytes:
    parts: list[bytes | memoryview] = [struct.pack("!I", sum(4 + len(field) for field in fields))]
    for field in fields:
        parts += (struct.pack("!I", len(field)), field)
    return b"".join(parts)


def decode_fields(frame: bytes) -> list[bytes]:
    fields = []
    position = 0
    while position < len(frame):
        if position + 4 > len(frame):
            raise ChannelClosed("a cut field length")
        (size,) = struct.unpack_from("!I", frame, position)
        position += 4
        if position + size > len(frame):
            raise ChannelClosed("a field longer than its frame")
        fields.append(frame[position : position + size])
        position += size
    return fields


class Reader(Protocol):
    async def readexactly(self, n: int, /) -> bytes: ...

    def at_eof(self) -> bool: ...


class Channel:
    """One request at a time, one answer each."""

    def __init__(self, reader: Reader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self, max_bytes: int) -> list[bytes]:
        try:
            (size,) = struct.unpack("!I", await self._reader.readexactly(4))
            if size > max_bytes:
                raise ChannelClosed(f"a frame of {size} bytes where {max_bytes} are allowed")
            frame = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ChannelClosed(f"end of stream ({error})") from error
        return decode_fields(frame)

    async def request(
        self, fields: Sequence[bytes | memoryview], *, max_bytes: int, within_s: float
    ) -> list[bytes]:
        try:
            async with asyncio.timeout(within_s):
                self._writer.write(encode_frame(fields))
                await self._writer.drain()
                return await self.receive(max_bytes)
        except OSError as error:  # TimeoutError is one
            raise ChannelClosed(str(error) or f"no answer within {within_s:.0f} s") from error

    @property
    def ended(self) -> bool:
        """Whether the other end is known to be gone, without asking it."""
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        self._writer.transport.abort()


def decode_output(head: bytes, tail: bytes, omitted_bytes: int) -> str:
    if not omitted_bytes:
        return (head + tail).decode("utf-8", "replace")
    line = f"\n[... {omitted_bytes} bytes left out ...]\n"
    return head.decode("utf-8", "replace") + line + tail.decode("utf-8", "replace")


def decode_result(answer: Sequence[bytes]) -> ExecResult:
    """The answer to `exec`; raises ValueError where a field is not what it must be."""
    code, duration, cpu, flags, omitted, head, tail = answer
    omitted_bytes, duration_s, cpu_s = int(omitted), float(duration), float(cpu)
    if omitted_bytes < 0 or not 0 <= duration_s < math.inf or not 0 <= cpu_s < math.inf:
        raise ValueError(f"omitted {omitted_bytes} bytes in {duration_s} s, {cpu_s} s of CPU")
    return ExecResult(
        output=decode_output(head, tail, omitted_bytes),
        exit_code=None if code == b"-" else int(code),
        duration_s=duration_s,
        timed_out=b"timed_out" in flags,
        omitted_bytes=omitted_bytes,
        out_of_memory=b"out_of_memory" in flags,
        cpu_s=cpu_s,
        killed=b"killed" in flags,
    )


class ChannelSandbox(ABC):
    """What both kinds of sandbox share: everything but being started and being removed."""

    from_image = False

    def __init__(self, sandbox_id: str) -> None:
        self.sandbox_id = sandbox_id
        self._channel: Channel | None = None
        self._lock = asyncio.Lock()
        self._stopping: asyncio.Task[None] | None = None
        self._died: ExecResult | None = None
        self._requests: set[asyncio.Task[list[bytes]]] = set()
        self.exec_limit: AbstractAsyncContextManager[Any] = contextlib.nullcontext()
        self.on_stopped: Callable[[ChannelSandbox], None] = lambda _: None
        self.on_stop_failed: Callable[[ChannelSandbox], None] = lambda _: None

    # --- what a kind of sandbox adds ------------------------------------------------------------

    @abstractmethod
    async def _remove(self) -> None:
        """End everything inside and remove every trace, verified; raises InfrastructureError."""

    @abstractmethod
    async def _ran_out_of_memory(self) -> bool:
        """Whether the kernel killed for the sandbox's own memory limit; asked of a dead one."""

    @abstractmethod
    async def _engine_trouble(self) -> str:
        """Why it may have ended without the agent's doing; empty where that is ruled out."""

    # --- the protocol ---------------------------------------------------------------------------

    async def greet(self, channel: Channel) -> None:
        """Wait until the server inside is ready."""
        self._channel = channel
        try:
            async with asyncio.timeout(_START_LIMIT_S):
                greeting = await channel.receive(_SLACK_BYTES)
        except TimeoutError as error:
            raise ChannelClosed(f"not ready within {_START_LIMIT_S:.0f} s") from error
        if greeting[:1] == [b"error"]:
            raise ChannelClosed(greeting[-1].decode("utf-8", "replace"))
        if greeting != [b"ok"]:
            raise ChannelClosed("an unknown greeting")

    async def runs_commands(self) -> bool:
        """The checked readiness of one that has just started."""
        try:
            result = await self.exec("true", timeout_s=_READY_LIMIT_S)
        except InfrastructureError:
            return False
        return result.exit_code == 0

    async def answers(self) -> bool:
        """Whether one that has waited unused still lives and holds nothing but its server: asked
        without starting a process, in a fraction of a millisecond."""
        if self._stopping is not None or self._channel is None or self._channel.ended:
            return False
        try:
            await self.end_processes()
        except InfrastructureError:
            return False
        return True

    async def exec(
        self, command: str, *, timeout_s: float, max_output_bytes: int = 65536
    ) -> ExecResult:
        if self._died is not None and self._stopping is None:
            return self._died
        request = (
            b"exec",
            command.replace("\0", "").encode("utf-8", "replace"),
            b"%.3f" % timeout_s,
            b"%d" % max_output_bytes,
        )
        try:
            async with self.exec_limit:
                answer = await self._ask(
                    request,
                    max_bytes=max_output_bytes + _SLACK_BYTES,
                    within_s=timeout_s + _ANSWER_GRACE_S,
                )
            return decode_result(answer)
        except ValueError as error:
            raise InfrastructureError("exec_transport", f"unreadable answer: {error}") from error
        except ChannelClosed as error:
            return await self._judge_death(error)

    async def _judge_death(self, error: ChannelClosed) -> ExecResult:
        """It ended during a command: the agent's own doing is a result, the rest is not."""
        if self._stopping is not None:
            raise InfrastructureError("exec_transport", f"{self.sandbox_id} was stopped")
        if await self._ran_out_of_memory():
            output, out_of_memory = "[sandbox ended: out of memory]", True
        else:
            trouble = await self._engine_trouble()
            if trouble:
                raise InfrastructureError("exec_transport", f"{trouble}: {error}") from error
            output, out_of_memory = "[sandbox shell killed]", False
        self._died = ExecResult(output, None, 0.0, out_of_memory=out_of_memory)
        return self._died

    async def put(self, files: Mapping[str, bytes], *, base: str | None = None) -> None:
        base_bytes = os.fsencode(base or "")
        plain: list[bytes] = []
        for path, content in files.items():
            if path.startswith("@") and path.endswith(".tar"):
                unpacked = archive.entries(content)
                if unpacked is None:
                    await self._transfer((b"untar", base_bytes, content))
                else:
                    plain += unpacked
            else:
                mode = b"755" if content.startswith(b"#!") else b"644"
                plain += (os.fsencode(path), mode, content)
        if plain:
            await self._transfer((b"put", base_bytes, *plain))

    async def get(self, path: str) -> bytes:
        """Raises OSError (FileNotFoundError and so on) where the path is not a readable file."""
        (content,) = await self._transfer((b"get", os.fsencode(path), b"%d" % MAX_GET_BYTES))
        return content

    async def end_processes(self) -> None:
        (left,) = await self._transfer((b"kill",))
        if left != b"0":
            message = f"{self.sandbox_id}: {left[:20]!r} processes do not end"
            raise InfrastructureError("exec_transport", message)

    async def allow_hosts(self, hosts: Sequence[str]) -> None:
        if hosts:
            message = f"{self.sandbox_id}: nothing leads out of it, so no host can be allowed"
            raise InfrastructureError("start", message)

    async def hand_over(self, folders: Sequence[str]) -> None:
        message = f"{self.sandbox_id}: its server is one user for good"
        raise InfrastructureError("start", message)

    async def _transfer(self, request: Fields) -> list[bytes]:
        try:
            return await self._ask(
                request, max_bytes=MAX_GET_BYTES + _SLACK_BYTES, within_s=_ANSWER_GRACE_S
            )
        except ChannelClosed as error:
            raise InfrastructureError("exec_transport", f"{self.sandbox_id}: {error}") from error

    async def _ask(self, request: Fields, *, max_bytes: int, within_s: float) -> list[bytes]:
        """Shielded: a cancelled caller leaves the exchange to end by itself, still in step."""

        async def exchange() -> list[bytes]:
            async with self._lock:
                if self._stopping is not None or self._channel is None:
                    raise ChannelClosed("stopped")
                return await self._channel.request(request, max_bytes=max_bytes, within_s=within_s)

        task = asyncio.create_task(exchange())
        self._requests.add(task)
        task.add_done_callback(self._forget)
        answer = await asyncio.shield(task)
        if answer[:1] == [b"ok"]:
            return answer[1:]
        if len(answer) != 3 or answer[0] != b"error" or not answer[1].isdigit():
            raise ChannelClosed("an unknown answer")
        code, message = int(answer[1]), answer[2].decode("utf-8", "replace")
        if code == _ENOSPC:
            raise InfrastructureError("disk", f"{self.sandbox_id}: {message}")
        raise OSError(code, message)

    def _forget(self, task: asyncio.Task[list[bytes]]) -> None:
        self._requests.discard(task)
        if not task.cancelled():
            task.exception()  # of a cancelled caller: nobody else asks

    # --- the end --------------------------------------------------------------------------------

    async def stop(self) -> None:
        failed = (
            self._stopping is not None
            and self._stopping.done()
            and (self._stopping.cancelled() or self._stopping.exception() is not None)
        )
        if self._stopping is None or failed:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        if self._channel is not None:
            self._channel.close()  # an exchange in progress ends with ChannelClosed
        try:
            await self._remove()
        except BaseException:
            self.on_stop_failed(self)
            raise
        self.on_stopped(self)
