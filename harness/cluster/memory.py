"""A heap that is never handed back: default malloc page-faults cost a third of the time here."""

from __future__ import annotations

import contextlib
import ctypes
import sys

# For a process that is to be started, as harness.cluster.local does it.
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "2000000000",
    "MALLOC_TOP_PAD_": "200000000",
}
_OPTIONS = {-8: 1, -3: 1_000_000_000, -1: 2_000_000_000, -2: 200_000_000}  # and one arena


def keep_memory() -> None:
    """The same for this process, which runs already."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # not glibc
            mallopt = ctypes.CDLL(None).mallopt
            for option, value in _OPTIONS.items():
                mallopt(option, value)
