"""The most memory that this process held between two points, as the system counts it."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import TracebackType

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def resident(field: str = "VmRSS") -> int:
    """Bytes: VmRSS now, VmHWM the most since the mark was last reset. Linux."""
    found = re.search(rf"^{field}:\s+(\d+) kB", _STATUS.read_text(), re.M)
    return int(found.group(1)) * 1024 if found else 0


class Peak:
    """A context: `before_bytes` held when it began, `bytes` the most inside it."""

    def __init__(self) -> None:
        self.before_bytes = self.bytes = 0

    def __enter__(self) -> Peak:
        self.before_bytes = resident()
        self._reset = False
        try:
            _CLEAR.write_text("5")  # sets the high-water mark to what is held now
            self._reset = True
        except OSError:  # no right to: sampled instead
            self._ended = threading.Event()
            self._sampler = threading.Thread(target=self._sample, daemon=True)
            self._sampler.start()
        return self

    def _sample(self) -> None:
        while not self._ended.wait(0.01):
            self.bytes = max(self.bytes, resident())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._reset:
            self.bytes = resident("VmHWM")
        else:
            self._ended.set()
            self._sampler.join()
            self.bytes = max(self.bytes, resident())
