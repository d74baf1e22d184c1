"""How a provider prepares, limits and places its sandboxes; how many live at once is not in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ProviderOptions:
    """`warm` sandboxes of each kind lately asked for are kept ready (0: none; None: as many as are
    expected at once where a start is slow, that is with Docker) for `time_to_live_s` at most.

    `hosts` are Docker engines (unix:// or tcp://; none: the one DOCKER_HOST names, or the local
    one), `host_parallel` their limits, in the same order (none: max_parallel each). Below
    `disk_free_mb` at an engine's data root nothing new starts there."""

    warm: int | None = 0
    time_to_live_s: float = 600.0
    start_parallel: int | None = None
    exec_parallel: int | None = None
    hosts: Sequence[str] = ()
    host_parallel: Sequence[int] = ()
    disk_free_mb: int = 0


DEFAULT_OPTIONS = ProviderOptions()
