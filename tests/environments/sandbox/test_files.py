"""Files in and out."""

from __future__ import annotations

import io
import os
import tarfile

import pytest


def test_round_trip(backend):
    blob = bytes(range(256)) * 8192

    async def body(sandbox):
        await sandbox.put(
            {"a/b/c.bin": blob, "run.sh": b"#!/bin/sh\necho ran\n", "leer": b"", "/tmp/abs": b"1"}
        )
        assert await sandbox.get("a/b/c.bin") == blob
        assert await sandbox.get("leer") == b""
        assert await sandbox.get("/tmp/abs") == b"1"
        result = await sandbox.exec("./run.sh; stat -c %a run.sh leer", timeout_s=20)
        assert result.output == "ran\n755\n644\n"
        await sandbox.put({"x": b"based"}, base="/tmp/deep/er")
        assert await sandbox.get("/tmp/deep/er/x") == b"based"

    backend.run(body)


def test_tar(backend):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, mode, content in (("d/one", 0o644, b"1" * 200_000), ("two", 0o755, b"2")):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.uid = len(content), mode, 1234
            tar.addfile(entry, io.BytesIO(content))

    async def body(sandbox):
        await sandbox.put({"@repo.tar": archive.getvalue(), "three": b"3"}, base="/testbed/sub")
        assert await sandbox.get("/testbed/sub/d/one") == b"1" * 200_000
        result = await sandbox.exec("stat -c '%a %u' sub/two; ls sub", timeout_s=20)
        assert result.output == "755 65532\nd\nthree\ntwo\n"
        with pytest.raises(OSError, match="tar"):
            await sandbox.put({"@broken.tar": b"no archive" * 1000})

    backend.run(body)


def test_what_cannot_be_read_is_an_ordinary_error(backend):
    async def body(sandbox):
        await sandbox.exec("mkfifo pipe; mkdir dir; truncate -s 1G sparse", timeout_s=20)
        with pytest.raises(FileNotFoundError):
            await sandbox.get("nothing")
        for path, text in (("pipe", "regular"), ("dir", "regular"), ("sparse", "larger")):
            with pytest.raises(OSError, match=text):
                await sandbox.get(path)
        with pytest.raises(OSError, match="regular"):
            await sandbox.get("/dev/zero")
        assert (await sandbox.exec("echo alive", timeout_s=20)).output == "alive\n"

    backend.run(body)


def test_put_replaces_links_and_pipes(backend):
    async def body(sandbox):
        await sandbox.exec("mkfifo target; ln -s /testbed/elsewhere link", timeout_s=20)
        await sandbox.put({"target": b"t", "link": b"l"})
        assert await sandbox.get("target") == b"t" and await sandbox.get("link") == b"l"
        with pytest.raises(FileNotFoundError):
            await sandbox.get("elsewhere")

    backend.run(body)


def test_large_files(backend):
    content = os.urandom(1 << 20) * 20

    async def body(sandbox):
        await sandbox.put({"large": content})
        assert await sandbox.get("large") == content

    backend.run(body)


def test_scratch_paths_are_empty_writable_and_bounded(backend):
    async def body(sandbox):
        full = await sandbox.exec("head -c 100M /dev/zero > /logs/verifier/x", timeout_s=20)
        assert "No space left" in full.output
        moved = await sandbox.exec("rmdir /tests", timeout_s=20)
        assert moved.exit_code != 0  # a mount point: nothing can take its place
        await sandbox.put({"test.sh": b"#!/bin/sh\necho ran\n"}, base="/tests")
        return (await sandbox.exec("/tests/test.sh", timeout_s=20)).output

    paths = ("/tmp", "/tests", "/logs/verifier")
    assert backend.run(body, scratch_paths=paths) == "ran\n"
