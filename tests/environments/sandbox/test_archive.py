"""A tar that a sandbox's server unpacks itself comes out as a tar program would leave it."""

from __future__ import annotations

import io
import tarfile

import pytest

from environments.sandbox.archive import entries

LOOK = "find . -mindepth 1 -printf '%P %y %m %l %s\\n' | sort"


def member(name: str, **settings: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for key, value in settings.items():
        setattr(made, key, value)
    return made


def packed(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


PLAIN = [
    (member("./deep", type=tarfile.DIRTYPE, mode=0o750), b""),
    (member("./deep/empty", type=tarfile.DIRTYPE, mode=0o755), b""),
    (member("deep/" + "long" * 60, mode=0o640, uid=1234), b"x" * 100_000),
    (member("run", mode=0o755), b"#!/bin/sh\n"),
    (member("none", mode=0o444), b""),
    (member("link", type=tarfile.SYMTYPE, linkname="deep/empty"), b""),
    (member("nowhere", type=tarfile.SYMTYPE, linkname="/no/such"), b""),
]


def test_it_is_what_a_tar_program_makes(backend):
    async def body(sandbox):
        archive = packed(PLAIN)
        assert entries(archive) is not None
        await sandbox.put({"@a.tar": archive}, base="/testbed/ours")
        await sandbox.put({"a.bin": archive}, base="/testbed")
        await sandbox.exec("mkdir theirs; tar -xf a.bin --no-same-owner -C theirs", timeout_s=20)
        ours = await sandbox.exec(f"cd ours; {LOOK}", timeout_s=20)
        theirs = await sandbox.exec(f"cd theirs; {LOOK}", timeout_s=20)
        assert ours.output == theirs.output
        assert ours.output.count("\n") == len(PLAIN)

    backend.run(body)


def test_another_put_replaces_files_and_keeps_out_of_links(backend):
    async def body(sandbox):
        await sandbox.exec("mkdir kept; echo old > run; ln -s kept/inside none", timeout_s=20)
        await sandbox.put({"@a.tar": packed(PLAIN), "/tmp/aside/tool": b"#!x"})
        seen = await sandbox.exec("cat run; ls kept; ls /tmp/aside; readlink link", timeout_s=20)
        assert seen.output == "#!/bin/sh\ntool\ndeep/empty\n"

    backend.run(body)


@pytest.mark.parametrize(
    "info",
    [
        member("/etc/x"),
        member("../x"),
        member("pipe", type=tarfile.FIFOTYPE),
        member("hard", type=tarfile.LNKTYPE, linkname="run"),
    ],
)
def test_what_is_no_plain_tree_is_a_tar_programs(info):
    assert entries(packed([(member("run"), b"1"), (info, b"")])) is None


@pytest.mark.parametrize("content", [b"no archive" * 100, packed(PLAIN)[:3000]])
def test_a_damaged_one_is_a_tar_programs(content):
    assert entries(content) is None
