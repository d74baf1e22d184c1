"""A git repository of one commit as a tar archive, made in memory without git.

Every byte follows from the files: fixed author, date and modes, so a task's base_commit is the same
on every machine, and there is no later history that could leak the fix.
"""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

EPOCH_S = 1735689600  # 2025-01-01T00:00:00Z
AUTHOR = "mini <mini@example.invalid>"
# Sizes and whole seconds decide whether a file changed: the archive fixes both, so git status and
# git diff trust the index and read only what was edited.
CONFIG = b"""[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tcheckstat = minimal
\ttrustctime = false
[gc]
\tauto = 0
"""


@dataclass(frozen=True)
class Repository:
    """A commit id (40 hex digits) and the tar of its working tree with .git."""

    commit: str
    tar: bytes = field(repr=False)
    git_tar: bytes = field(repr=False)  # the .git folder alone


class _Objects:
    def __init__(self) -> None:
        self.loose: dict[str, bytes] = {}

    def add(self, kind: str, body: bytes) -> str:
        data = f"{kind} {len(body)}\0".encode() + body
        name = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        self.loose[f"objects/{name[:2]}/{name[2:]}"] = zlib.compress(data)
        return name


def _mode(content: bytes) -> int:
    return 0o100755 if content.startswith(b"#!") else 0o100644


def _write_tree(objects: _Objects, files: Mapping[str, bytes]) -> str:
    """The tree id of `files` (path -> content); subfolders become subtrees."""
    folders: dict[str, dict[str, bytes]] = {}
    entries: list[tuple[bytes, bytes]] = []
    for path, content in files.items():
        head, slash, rest = path.partition("/")
        if slash:
            folders.setdefault(head, {})[rest] = content
        else:
            blob = bytes.fromhex(objects.add("blob", content))
            name = head.encode()
            entries.append((name, b"%o %s\0" % (_mode(content), name) + blob))
    for head, inside in folders.items():
        tree = bytes.fromhex(_write_tree(objects, inside))
        # git sorts a folder as if its name ended in a slash
        entries.append((head.encode() + b"/", b"40000 %s\0" % head.encode() + tree))
    return objects.add("tree", b"".join(entry for _, entry in sorted(entries)))


def _index(files: Mapping[str, bytes]) -> bytes:
    """A version 2 index of `files`, in step with the archive's sizes and times."""
    out = [b"DIRC" + struct.pack(">II", 2, len(files))]
    for path in sorted(files, key=str.encode):
        content = files[path]
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).digest()
        name = path.encode()
        stat = (EPOCH_S, 0, EPOCH_S, 0, 0, 0, _mode(content), 0, 0, len(content))
        entry = struct.pack(">10I", *stat) + blob + struct.pack(">H", min(len(name), 0xFFF)) + name
        out.append(entry + b"\0" * (8 - len(entry) % 8))
    body = b"".join(out)
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _archive(files: Mapping[str, tuple[bytes, int]], folders: set[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for folder in sorted(folders):
            info = tarfile.TarInfo(folder)
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, EPOCH_S
            archive.addfile(info)
        for path in sorted(files):
            content, mtime = files[path]
            info = tarfile.TarInfo(path)
            info.size, info.mtime, info.mode = len(content), mtime, _mode(content) & 0o777
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _parents(paths: Mapping[str, object]) -> set[str]:
    return {p.rsplit("/", n)[0] for p in paths for n in range(1, p.count("/") + 1)}


def build_repository(files: Mapping[str, bytes], message: str = "base") -> Repository:
    """One commit holding `files` (path -> content; executable where it starts with '#!')."""
    objects = _Objects()
    tree = _write_tree(objects, files)
    signature = f"{AUTHOR} {EPOCH_S} +0000"
    body = f"tree {tree}\nauthor {signature}\ncommitter {signature}\n\n{message}\n"
    commit = objects.add("commit", body.encode())
    git = {
        "HEAD": b"ref: refs/heads/main\n",
        "refs/heads/main": commit.encode() + b"\n",
        "config": CONFIG,
        "index": _index(files),
    } | objects.loose
    # The index is newer than the files: git takes equal times for a possible race and reads again.
    inside = {f".git/{path}": (content, EPOCH_S + 60) for path, content in git.items()}
    work = {path: (content, EPOCH_S) for path, content in files.items()}
    folders = {".git", ".git/refs/tags"} | _parents(inside)
    return Repository(
        commit,
        _archive(work | inside, folders | _parents(work)),
        _archive(inside, folders),
    )
