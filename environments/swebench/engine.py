"""What the Docker engine has of a data set's images, for the check before a run and the tool."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from environments.protocols import UsageError

CALL_LIMIT_S = 3600  # a pull or build of one image


def open_engine(key: str) -> Any:
    """A client of the engine; raises UsageError, after `key`, where none answers."""
    from environments.sandbox.images import connect, engine

    client, trouble = engine()
    if client is None:
        raise UsageError(f"{key}: its images need a Docker engine: {trouble}")
    client.close()
    return connect(CALL_LIMIT_S)


def present_images(client: Any) -> dict[str, int]:
    """Image name with its tag -> size in bytes, of all that the engine has."""
    return {
        tag: int(entry["Size"]) for entry in client.api.images() for tag in entry["RepoTags"] or []
    }


def missing_images(images: Collection[str], key: str) -> list[str]:
    """Those of `images` that the engine lacks, sorted."""
    client = open_engine(key)
    try:
        present = present_images(client)
    finally:
        client.close()
    return sorted(image for image in images if with_tag(image) not in present)


def with_tag(image: str) -> str:
    """The name as the engine lists it."""
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"
