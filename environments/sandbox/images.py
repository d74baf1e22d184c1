"""The Docker images that sandboxes start from: `python -m environments.sandbox.images build`.

`thundersync/mini:1` has python3, pytest, freezegun, git, bash and the usual tools, and an empty
/testbed. It is built from a public Python image where a registry answers, else from a Debian base
that debootstrap makes from any apt mirror (as root; 70 s, 400 MB).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from environments.protocols import ImageBuild, InfrastructureError, UsageError
from environments.sandbox import tls
from environments.sandbox.ownership import IMAGE_LABEL

MINI_IMAGE = "thundersync/mini:1"
DEFAULT_BASE = "python:3.11-slim"
SCRATCH_LABEL = "thundersync.scratch"  # an empty directory that may be a tmpfs
_REPOSITORY = "thundersync/"
_ENGINE_LIMIT_S = 10  # a busy machine may need seconds; where none is, that is known at once
_ANY_VERSION = "1.41"
_BUILD_LIMIT_S = 600
_USER = 65532
_DEBIAN = "bookworm"
_PACKAGES = "python3,python3-pytest,python3-freezegun,git,ca-certificates,procps"
_DOCKERFILE = """\
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends git procps \\
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m pip install --no-cache-dir pytest freezegun
RUN mkdir -p /testbed && chown 65532:65532 /testbed \\
 && echo 'agent:x:65532:65532:agent:/tmp:/bin/bash' >> /etc/passwd \\
 && echo 'agent:x:65532:' >> /etc/group
LABEL {label}=/testbed
WORKDIR /testbed
"""


def connect(timeout_s: int, address: str | None = None) -> Any:
    """A client of the engine at `address`, or of that which DOCKER_HOST names (default: the local
    socket). Raises UsageError for certificates that are no use (tls.py)."""
    import docker
    from docker.errors import DockerException

    options = {"timeout": timeout_s, "max_pool_size": 16, **tls.client_options(address)}
    if not str(options.get("base_url")).startswith("tcp:"):
        return docker.DockerClient(**options)

    def client(version: str) -> Any:
        made = docker.DockerClient(version=version, **options)
        made.api.trust_env = False  # REQUESTS_CA_BUNDLE and HTTP_PROXY are not meant for engines
        return made

    asking = client(_ANY_VERSION)  # without one it would ask in its constructor, with trust_env
    try:
        said = asking.api.version(api_version=False)
        if not isinstance(said, dict) or "ApiVersion" not in said:
            raise DockerException(f"no engine's answer: {said!r:.60}")
        return client(said["ApiVersion"])
    finally:
        asking.close()


def engine(address: str | None = None) -> tuple[Any, str]:
    """A client of the Docker engine that answers within 10 s, or None and the reason."""
    from docker.errors import DockerException

    at_fault = tls.trouble(address or os.environ.get("DOCKER_HOST", ""))
    if at_fault:
        return None, at_fault
    try:
        client = connect(_ENGINE_LIMIT_S, address)
        client.ping()
    except (DockerException, OSError) as error:
        at = f" at {address}" if address else ""
        trouble = f"no Docker engine answers{at} ({str(error)[:120]})"
        return None, f"{trouble}; start one: .ci/docker.sh"
    return client, ""


def ensure_image(client: Any, image: str, *, build: bool) -> str:
    """Empty where `image` is there; else why not, with the way out.

    With `build` the mini image is made where a base for it is already on the engine (under 1 min).
    """
    if has_image(client, image):
        return ""
    if image != MINI_IMAGE:
        return f"the image {image} is missing; pull it: docker pull {image}"
    if build and has_image(client, DEFAULT_BASE):
        slow = connect(_BUILD_LIMIT_S)
        try:
            build_from_image(slow, DEFAULT_BASE)
        except UsageError as error:
            return str(error)
        finally:
            slow.close()
        return ""
    return f"the image {image} is missing; build it: python -m environments.sandbox.images build"


def has_image(client: Any, image: str) -> bool:
    from docker.errors import ImageNotFound

    try:
        client.api.inspect_image(image)
    except ImageNotFound:
        return False
    return True


def build_image(image: str, build: ImageBuild, address: str | None = None) -> None:
    """Make `image` from its Dockerfile where the engine lacks it; raises InfrastructureError with
    the last that the engine said. Giving up ends the build: the engine follows the connection."""
    from docker.errors import APIError
    from requests.exceptions import RequestException

    client = connect(_BUILD_LIMIT_S, address)
    try:
        if has_image(client, image):
            return
        give_up = time.monotonic() + build.timeout_s
        stream = client.api.build(
            fileobj=io.BytesIO(build.context), custom_context=True, tag=image,
            network_mode=build.network,
            rm=True, forcerm=True, decode=True, labels={IMAGE_LABEL: "1"},
        )  # fmt: skip
        for said in stream:
            if "error" in said:
                raise InfrastructureError("image", f"{image}: {said['error'].strip()[:300]}")
            if time.monotonic() > give_up:
                limit = f"the build takes longer than {build.timeout_s:g} s"
                raise InfrastructureError("image", f"{image}: {limit}")
    except (APIError, RequestException) as error:
        raise InfrastructureError("image", f"{image}: {str(error)[:300]}") from error
    finally:
        client.close()


def build_from_image(client: Any, base: str) -> None:
    """The mini image on a public Python image; needs a registry (or `base` here), apt and PyPI."""
    from docker.errors import APIError, BuildError

    dockerfile = _DOCKERFILE.format(base=base, label=SCRATCH_LABEL)
    try:
        client.images.build(
            fileobj=io.BytesIO(dockerfile.encode()), tag=MINI_IMAGE, forcerm=True, rm=True
        )
    except (APIError, BuildError) as error:
        way_out = "without a registry: --base debootstrap"
        raise UsageError(f"--base={base}: {str(error)[:300]}; {way_out}") from error


def build_from_debootstrap(client: Any, mirror: str | None) -> None:
    """The mini image from Debian packages alone; needs root and any apt mirror."""
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise UsageError("--base=debootstrap: needs root and `apt-get install debootstrap`")
    with tempfile.TemporaryDirectory(prefix="thundersync-image.") as directory:
        root = Path(directory) / "root"
        command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _DEBIAN, str(root)]
        outcome = subprocess.run(
            command + ([mirror] if mirror else []), stdin=subprocess.DEVNULL, stdout=sys.stderr
        )
        if outcome.returncode != 0:
            raise UsageError(f"--base=debootstrap: exit {outcome.returncode}; try --mirror URL")
        _finish_root(root)
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
            repository, tag = MINI_IMAGE.split(":")
            changes = ["WORKDIR /testbed", 'CMD ["bash"]', f"LABEL {SCRATCH_LABEL}=/testbed"]
            client.api.import_image_from_data(
                tar.stdout, repository=repository, tag=tag, changes=changes
            )
    if not has_image(client, MINI_IMAGE):
        raise UsageError("--base=debootstrap: the engine did not take the image; see its log")


def _finish_root(root: Path) -> None:
    testbed = root / "testbed"
    testbed.mkdir()
    os.chown(testbed, _USER, _USER)
    (root / "usr/bin/python").symlink_to("python3")
    with (root / "etc/passwd").open("a") as passwd:
        passwd.write(f"agent:x:{_USER}:{_USER}:agent:/tmp:/bin/bash\n")
    with (root / "etc/group").open("a") as group:
        group.write(f"agent:x:{_USER}:\n")
    shutil.rmtree(root / "var/cache/apt/archives")
    for left in ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/lib/apt/lists"):
        shutil.rmtree(root / left)


def list_images(client: Any) -> list[dict[str, Any]]:
    """This project's images: name, size and age."""
    entries = client.api.images(name=_REPOSITORY + "*")
    return [
        {"image": tag, "size_mb": entry["Size"] >> 20, "created": entry["Created"]}
        for entry in entries
        for tag in entry["RepoTags"] or []
    ]


def main(arguments: list[str] | None = None) -> None:
    """One JSON line on standard output; exit 2 with one clear line on a usage error."""
    parser = argparse.ArgumentParser(prog="python -m environments.sandbox.images")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help=f"build {MINI_IMAGE}")
    build.add_argument(
        "--base",
        default="auto",
        help=f"an image with Python, or debootstrap; auto: {DEFAULT_BASE}, else debootstrap",
    )
    build.add_argument("--mirror", help="apt mirror for debootstrap")
    commands.add_parser("list", help="list this project's images")
    commands.add_parser("remove", help="remove this project's images")
    options = parser.parse_args(arguments)
    try:
        print(json.dumps(_run(options)))
    except UsageError as error:
        parser.exit(2, f"{error}\n")


def _run(options: argparse.Namespace) -> Any:
    client, trouble = engine()
    if client is None:
        raise UsageError(trouble)
    client.close()
    client = connect(_BUILD_LIMIT_S)
    try:
        if options.command == "build":
            _build(client, options.base, options.mirror)
        elif options.command == "remove":
            removed = list_images(client)
            for entry in removed:
                client.api.remove_image(entry["image"])
            return {"removed": [entry["image"] for entry in removed]}
        return {"images": list_images(client)}
    finally:
        client.close()


def _build(client: Any, base: str, mirror: str | None) -> None:
    if base == "debootstrap":
        build_from_debootstrap(client, mirror)
    elif base != "auto":
        build_from_image(client, base)
    else:
        try:
            build_from_image(client, DEFAULT_BASE)
        except UsageError as error:
            print(f"{error}\ntrying debootstrap", file=sys.stderr)
            build_from_debootstrap(client, mirror)


if __name__ == "__main__":
    main()
