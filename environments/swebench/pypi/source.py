"""Reads a built data set; a missing or damaged one is a usage error that names the command."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from environments.protocols import SandboxSpec, UsageError
from environments.swebench.instance import Instance, parse_instances
from environments.swebench.mini.dataset import sandbox_environment
from environments.swebench.pypi.releases import read_table
from environments.swebench.source import BundledSource

SPLITS = ("train", "eval")
HELD_OUT = ("pypi__wcwidth-0.2.12", "pypi__humanize-4.12.2")  # the eval split; the others train
MANIFEST = Path(__file__).with_name("manifest.json")
_TOOLS_INSIDE = "/pypi-tools"
_WORKDIR = "/testbed"


def read_manifest() -> dict[str, Any]:
    """Hashes and counts of the data set as it must come out of a build."""
    return json.loads(MANIFEST.read_text())


def data_root(data_dir: str | None) -> Path:
    """Where data sets and downloads lie: `data_dir`, else below the user's cache folder."""
    if data_dir:
        return Path(data_dir).absolute()
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_home) / "thundersync" / "pypi"


def built_folder(data_dir: str | None, manifest: Mapping[str, Any]) -> Path:
    """The folder of the data set that `manifest` describes; it exists only when it is complete."""
    return data_root(data_dir) / f"data-{manifest['instances_sha256'][:12]}"


def build_command(data_dir: str | None) -> str:
    return "python -m environments.swebench.pypi" + (f" data_dir={data_dir}" if data_dir else "")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _split(instance: Instance) -> str:
    return "eval" if instance.instance_id in HELD_OUT else "train"


class Folder:
    """The files of one data set, complete or in the making."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tools = path / "tools"
        self.instances = path / "instances.jsonl"

    def repository(self, instance_id: str) -> Path:
        return self.path / "repositories" / f"{instance_id}.tar"


class FolderSource(BundledSource):
    """Serves `instances`, whose repositories and tools lie in a folder."""

    name = "pypi"
    splits: Sequence[str] = SPLITS
    prompt = "full"
    solved_run_is_clean = True
    decoy = True

    def __init__(self, folder: Folder, instances: Sequence[Instance]) -> None:
        self._folder = folder
        self._instances = [replace(instance, split=_split(instance)) for instance in instances]

    def instances(self, split: str) -> Sequence[Instance]:
        if split not in SPLITS:
            raise UsageError(f"env.split={split!r}: data set 'pypi' has {', '.join(SPLITS)}")
        return [instance for instance in self._instances if instance.split == split]

    def repository(self, instance: Instance) -> bytes:
        return self._folder.repository(instance.instance_id).read_bytes()

    def git_folder(self, instance: Instance) -> bytes:
        buffer = io.BytesIO()
        with (
            tarfile.open(fileobj=io.BytesIO(self.repository(instance))) as whole,
            tarfile.open(fileobj=buffer, mode="w") as part,
        ):
            for member in whole:
                if PurePosixPath(member.name).parts[0] == ".git":
                    part.addfile(member, whole.extractfile(member) if member.isfile() else None)
        return buffer.getvalue()

    def tools(self, instance: Instance) -> Mapping[str, bytes]:
        return {}

    def sandbox_spec(self, instance: Instance) -> SandboxSpec:
        """Test runner and freezegun are bound read-only; an image has its own where a remote engine
        cannot see this machine's folder."""
        below = read_table().release(instance.instance_id).python_path
        path = f"{_TOOLS_INSIDE}:{_WORKDIR}/{below}" if below else _TOOLS_INSIDE
        environment = sandbox_environment()
        # The harness's own Python first: the system's may be older than the tests allow.
        own = os.path.join(sys.base_prefix, "bin")
        return SandboxSpec(
            image=instance.image,
            workdir=_WORKDIR,
            scratch_mb=128,
            environment=environment | {"PATH": f"{own}:{environment['PATH']}", "PYTHONPATH": path},
            read_only_binds={str(self._folder.tools): _TOOLS_INSIDE},
        )


class PypiSource(FolderSource):
    """Six real bug fixes of projects on PyPI, built by `python -m environments.swebench.pypi`."""

    def __init__(self, data_dir: str | None = None) -> None:
        manifest = read_manifest()
        folder = Folder(built_folder(data_dir, manifest))
        rebuild = build_command(data_dir)
        if not folder.path.is_dir():
            raise UsageError(
                f"env.dataset=pypi: there is no data set in {folder.path}; build it: {rebuild}"
            )
        expected = {folder.instances: manifest["instances_sha256"]}
        for name, entry in manifest["instances"].items():
            expected[folder.repository(name)] = entry["repository_sha256"]
        for path, digest in expected.items():
            if not path.is_file() or sha256(path.read_bytes()) != digest:
                raise UsageError(
                    f"env.dataset=pypi: {path} is damaged; delete {folder.path} and build it "
                    f"again: {rebuild}"
                )
        lines = folder.instances.read_text(encoding="utf-8").splitlines()
        super().__init__(folder, parse_instances(map(json.loads, lines), str(folder.instances)))
