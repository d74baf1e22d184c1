"""The host believes nothing that comes out of a sandbox."""

from __future__ import annotations

import asyncio
import struct

import pytest

from environments.protocols import InfrastructureError
from environments.sandbox.channel import (
    Channel,
    ChannelClosed,
    ChannelSandbox,
    decode_fields,
    decode_output,
    encode_frame,
)


class Scripted(ChannelSandbox):
    """A sandbox whose server says what the test wants."""

    async def _remove(self) -> None:
        pass

    async def _ran_out_of_memory(self) -> bool:
        return False

    async def _engine_trouble(self) -> str:
        return "scripted"


async def converse(answer: bytes, action):
    async def serve(reader, writer):
        writer.write(encode_frame([b"ok"]))
        size = struct.unpack("!I", await reader.readexactly(4))[0]
        await reader.readexactly(size)
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(host, port)
        sandbox = Scripted("scripted")
        await sandbox.greet(Channel(reader, writer))
        try:
            return await action(sandbox)
        finally:
            await sandbox.stop()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff\xff\xff\xff" + b"x" * 100,
        struct.pack("!I", 6) + struct.pack("!I", 900) + b"ok",
        struct.pack("!I", 3) + b"abc",
        encode_frame([]),
        encode_frame([b"ok"]),
        encode_frame([b"ok", b"x", b"y", b"0", b"z", b"1", b"", b""]),
        encode_frame([b"error", b"nan", b"m"]),
        encode_frame([b"ok", b"0", b"nan", b"0", b"", b"0", b"", b""]),
        encode_frame([b"ok", b"0", b"1.0", b"-1", b"", b"0", b"", b""]),
        encode_frame([b"ok", b"0", b"1.0", b"0", b"", b"-5", b"", b""]),
        encode_frame([b"ok", b"9" * 6000, b"1.0", b"0", b"", b"0", b"", b""]),
    ],
)
def test_garbage_is_an_infrastructure_error(answer):
    with pytest.raises(InfrastructureError, match="exec_transport"):
        asyncio.run(converse(answer, lambda sandbox: sandbox.exec("true", timeout_s=5)))


def test_too_long_answer_is_not_read():
    answer = struct.pack("!I", 1 << 30) + b"x" * (1 << 20)

    async def action(sandbox):
        return await sandbox.exec("true", timeout_s=5, max_output_bytes=10)

    with pytest.raises(InfrastructureError, match="a frame of 1073741824 bytes"):
        asyncio.run(converse(answer, action))


def test_frames_round_trip():
    fields = [b"", b"one", b"\0" * 1000]
    assert decode_fields(encode_frame(fields)[4:]) == fields
    with pytest.raises(ChannelClosed):
        decode_fields(b"\0\0")


def test_decode_output_marks_the_gap():
    assert decode_output(b"\xe2\x82", b"\xac", 0) == "€"
    assert decode_output(b"a", b"b", 5) == "a\n[... 5 bytes left out ...]\nb"
