"""Asks an image registry (its HTTP interface, version 2) what an image's layers weigh."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_LIMIT_S = 20.0
_HUB = "registry-1.docker.io"
_MANIFESTS = ", ".join(
    (
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.oci.image.index.v1+json",
    )
)


def split_name(image: str) -> tuple[str, str, str]:
    """(registry host, repository, tag) of an image name, as Docker reads it."""
    first, slash, rest = image.partition("/")
    if not (slash and ("." in first or ":" in first or first == "localhost")):
        first, rest = _HUB, image
    repository, colon, tag = rest.rpartition(":")
    if not colon:
        repository, tag = rest, "latest"
    return first, repository if "/" in repository or first != _HUB else f"library/{repository}", tag


def layer_bytes(image: str) -> Mapping[str, int]:
    """Layer digest -> compressed bytes, of the amd64 image. Raises OSError (requests' errors are)
    where the registry does not answer or has no such image."""
    import requests

    host, repository, tag = split_name(image)
    scheme = "http" if host.partition(":")[0] in ("localhost", "127.0.0.1") else "https"
    base = f"{scheme}://{host}/v2/{repository}/manifests/"
    with requests.Session() as session:
        session.headers["Accept"] = _MANIFESTS
        answer = session.get(base + tag, timeout=_LIMIT_S)
        if answer.status_code == 401:
            session.headers["Authorization"] = f"Bearer {_token(session, answer)}"
            answer = session.get(base + tag, timeout=_LIMIT_S)
        answer.raise_for_status()
        manifest: dict[str, Any] = answer.json()
        if "manifests" in manifest:
            chosen = next(
                m for m in manifest["manifests"] if m["platform"]["architecture"] == "amd64"
            )
            answer = session.get(base + chosen["digest"], timeout=_LIMIT_S)
            answer.raise_for_status()
            manifest = answer.json()
    return {layer["digest"]: int(layer["size"]) for layer in manifest["layers"]}


def _token(session: Any, refusal: Any) -> str:
    """An anonymous pull token from the service that the refusal names."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', refusal.headers.get("WWW-Authenticate", "")))
    realm = fields.pop("realm", None)
    if realm is None:
        refusal.raise_for_status()
    answer = session.get(realm, params=fields, timeout=_LIMIT_S)
    answer.raise_for_status()
    return answer.json()["token"]
