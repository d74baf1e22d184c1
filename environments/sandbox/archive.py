"""A tar as the files in it, which a sandbox's server writes itself: a tar program costs 5 ms there,
of which the files take one."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from functools import lru_cache

_CACHED_BYTES = 1 << 20


def entries(archive: bytes) -> tuple[bytes, ...] | None:
    """(path, mode, content)..., the mode in octal with the kind's bits, as the server's `put` reads
    them; None for a tar that cannot be read, or has more than files, folders and symbolic links
    below its root."""
    return _cached(archive) if len(archive) <= _CACHED_BYTES else _read(archive)


def _read(archive: bytes) -> tuple[bytes, ...] | None:
    try:
        return _fields(archive)
    except tarfile.TarError:
        return None  # a tar program says what is wrong with it


def _fields(archive: bytes) -> tuple[bytes, ...] | None:
    fields: list[bytes] = []
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        for member in tar:
            path = os.path.normpath(member.name)
            if path.startswith(("/", "..")):
                return None
            if member.isreg():
                file = tar.extractfile(member)
                assert file is not None
                kind, content = stat.S_IFREG, file.read()
            elif member.isdir():
                kind, content = stat.S_IFDIR, b""
            elif member.issym():
                kind, content = stat.S_IFLNK, os.fsencode(member.linkname)
            else:
                return None
            mode = kind | stat.S_IMODE(member.mode)
            fields += (os.fsencode(path), b"%o" % mode, content)
    return tuple(fields)


_cached = lru_cache(maxsize=256)(_read)
