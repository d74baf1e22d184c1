"""Fetches pinned files with pip and checks them against their SHA-256.

pip asks a source distribution's build backend for metadata, even to download it. No code of a
release may run outside a sandbox, so the backends are replaced by one that copies PKG-INFO; that is
also ten times faster.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from environments.protocols import UsageError
from environments.swebench.pypi.releases import Pin

_BACKENDS = ("setuptools/build_meta", "poetry/core/masonry/api", "flit_core/buildapi")
_BACKENDS += ("hatchling/build",)
_BACKEND = """\
import os, re, sys

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    with open("PKG-INFO", encoding="utf-8") as file:
        text = file.read()
    name, version = (re.search(f"^{key}: (.+)$", text, re.M)[1] for key in ("Name", "Version"))
    folder = f"{name}-{version}.dist-info"
    os.mkdir(os.path.join(metadata_directory, folder))
    with open(os.path.join(metadata_directory, folder, "METADATA"), "w", encoding="utf-8") as file:
        file.write(text)
    return folder

__legacy__ = sys.modules[__name__]  # what a project without a pyproject.toml is built by
"""
_PIP_LIMIT_S = 600


def fetch_sdists(pins: Sequence[Pin], folder: Path, scratch: Path) -> None:
    """Bring every sdist of `pins` into `folder`; those already there are only checked.

    Raises UsageError for a file whose hash is not the pinned one, and where pip finds no index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [pin for pin in pins if not (folder / pin.sdist_name).exists()]
    backends = scratch / "backends"
    for path in _BACKENDS:
        file = backends / f"{path}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_BACKEND)
        for package in file.relative_to(backends).parents[:-1]:  # without it an installed one wins
            (backends / package / "__init__.py").touch()
    while missing:
        # pip takes one version of a project at a time
        batch = list({pin.project: pin for pin in missing}.values())
        options = ["--no-binary", ":all:", "--no-build-isolation"]
        _pip("download", batch, [*options, "--dest", str(scratch / "sdists")], scratch, backends)
        missing = [pin for pin in missing if pin not in batch]
        for pin in batch:
            check(pin, scratch / "sdists" / pin.sdist_name)
            os.replace(scratch / "sdists" / pin.sdist_name, folder / pin.sdist_name)
    for pin in pins:
        check(pin, folder / pin.sdist_name)


def install_tools(pins: Sequence[Pin], folder: Path, scratch: Path) -> None:
    """Install the wheels `pins` into `folder`, readable by every user."""
    options = ["--only-binary", ":all:", "--target", str(folder)]
    _pip("install", pins, options, scratch)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def check(pin: Pin, path: Path) -> None:
    """Raise UsageError unless `path` holds the pinned bytes."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != pin.sha256:
        raise UsageError(
            f"{path}: SHA-256 is {found}, not the pinned {pin.sha256}; delete the file to fetch it "
            "again, and distrust its source if that does not help"
        )


def read_sdist(path: Path) -> dict[str, bytes]:
    """The files of a source distribution, without its top folder."""
    files = {}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                files[member.name.partition("/")[2]] = content.read()
    return files


def _pip(
    command: str,
    pins: Sequence[Pin],
    options: Sequence[str],
    scratch: Path,
    python_path: Path | None = None,
) -> None:
    requirements = scratch / "requirements.txt"
    requirements.write_text("".join(f"{pin.requirement}\n" for pin in pins))
    environment = dict(os.environ, PIP_USE_PEP517="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
    if python_path is not None:
        environment["PYTHONPATH"] = str(python_path)
    arguments = [sys.executable, "-m", "pip", command, "--quiet", "--no-input", "--no-deps"]
    names = ", ".join(pin.project for pin in pins)
    try:
        outcome = subprocess.run(
            [*arguments, "--require-hashes", "-r", str(requirements), *options],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PIP_LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"pip {command} {names}: no end within {error.timeout:.0f} s") from error
    if outcome.returncode != 0:
        lines = [line.strip() for line in outcome.stderr.splitlines()]
        errors = [line for line in lines if line.lower().startswith("error")]
        said = "; ".join(errors or lines[-1:])[:400]
        raise UsageError(
            f"pip {command} {names}: {said or 'failed'} (it needs a package index that has them)"
        )
