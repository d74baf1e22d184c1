"""How a provider prepares, limits and places its sandboxes; how many live at once is not in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from environments.protocols import UsageError


@dataclass(frozen=True)
class ProviderOptions:
    """`warm` sandboxes of each kind lately asked for are kept ready (0: none; None: as many as are
    expected at once where a start is slow, that is with Docker) for `time_to_live_s` at most.

    `hosts` are Docker engines (unix:// or tcp://; none: the one DOCKER_HOST names, or the local
    one), `host_parallel` their limits, in the same order (none: max_parallel each). Below
    `disk_free_mb` at an engine's data root nothing new starts there.

    `mirrors` (NAME:PORT:ADDRESS) say where an allowed host is reached instead of what DNS says: the
    only way to an address that is not public."""

    warm: int | None = 0
    time_to_live_s: float = 600.0
    start_parallel: int | None = None
    exec_parallel: int | None = None
    hosts: Sequence[str] = ()
    host_parallel: Sequence[int] = ()
    disk_free_mb: int = 0
    mirrors: Sequence[str] = ()


DEFAULT_OPTIONS = ProviderOptions()


def check_mirrors(mirrors: Sequence[str]) -> None:
    """Raise UsageError for one that is not NAME:PORT:ADDRESS."""
    for mirror in mirrors:
        name, _, rest = mirror.partition(":")
        port, _, address = rest.partition(":")
        try:
            ip_address(address)
            good = 0 < int(port) < 65536 and name not in ("", "*") and "*" not in name
        except ValueError:
            good = False
        if not good:
            raise UsageError(
                f"sandbox.mirrors={list(mirrors)}: {mirror} is not NAME:PORT:ADDRESS; write the "
                "address that stands for an allowed host, as in pypi.org:443:10.0.0.5"
            )
