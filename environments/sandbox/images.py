"""The Docker images that sandboxes start from, and the engine that keeps them."""

from __future__ import annotations

from typing import Any

_ENGINE_LIMIT_S = 2


def engine() -> tuple[Any, str]:
    """A client of the Docker engine that answers within 2 s, or None and the reason."""
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=_ENGINE_LIMIT_S)
        client.ping()
    except (DockerException, OSError) as error:
        return None, f"no Docker engine answers ({str(error)[:120]}); start one: .ci/docker.sh"
    return client, ""


def ensure_image(client: Any, image: str, *, build: bool) -> str:
    """Empty where `image` is there; else why not, with the way out."""
    from docker.errors import ImageNotFound

    try:
        client.images.get(image)
    except ImageNotFound:
        command = "python -m environments.sandbox.images build"
        return f"the image {image} is missing; build it: {command}"
    return ""
