"""Builds the data set: all of it, checked against table and manifest, or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from environments.protocols import UsageError
from environments.sandbox.images import MINI_IMAGE
from environments.sandbox.select import SandboxKind, open_provider
from environments.swebench import grading
from environments.swebench.instance import Instance
from environments.swebench.pypi.download import fetch_sdists, install_tools
from environments.swebench.pypi.instances import draft, validated
from environments.swebench.pypi.releases import read_table
from environments.swebench.pypi.source import (
    MANIFEST,
    Folder,
    FolderSource,
    built_folder,
    data_root,
    read_manifest,
    sha256,
)

_STAGING = ".building-"
_SANDBOXES = max(2, min(4, os.cpu_count() or 1))


def build(data_dir: str | None, *, sandbox: SandboxKind = "auto", record: bool = False) -> Path:
    """The data set's folder, built unless it is there. `record` makes the result the manifest.

    A build happens in a folder of its own and is renamed at its end, so that an interrupted one
    leaves no data set; what it left is removed by the next.
    Raises UsageError where a download, the sandboxes or the tests do not do what they must.
    """
    root = data_root(data_dir)
    root.mkdir(parents=True, exist_ok=True)
    with _alone(root):
        for left in root.glob(_STAGING + "*"):
            shutil.rmtree(left)
        if not record and built_folder(data_dir, read_manifest()).is_dir():
            return built_folder(data_dir, read_manifest())
        staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=root))
        try:
            folder = Folder(staging / "data")
            manifest = _fill(folder, root / "sdists", staging / "scratch", sandbox)
            if record:
                MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n")
            else:
                _compare(manifest, read_manifest())
            target = built_folder(data_dir, manifest)
            if not target.is_dir():
                os.rename(folder.path, target)
        finally:
            shutil.rmtree(staging)
    return target


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """One build at a time; the lock ends with its process."""
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fill(folder: Folder, sdists: Path, scratch: Path, sandbox: SandboxKind) -> dict[str, Any]:
    """Put everything into `folder`; returns the manifest of what came out."""
    table = read_table()
    scratch.mkdir()
    _say("downloading source distributions and test tools")
    fetch_sdists([pin for r in table.releases for pin in (r.buggy, r.fixed)], sdists, scratch)
    install_tools(table.tools, folder.tools, scratch)
    drafts = [draft(release, sdists) for release in table.releases]
    folder.repository("").parent.mkdir()
    for made in drafts:
        folder.repository(made.instance.instance_id).write_bytes(made.repository.tar)
    instances = asyncio.run(_validate(folder, [made.instance for made in drafts], sandbox))
    lines = [json.dumps(instance.record(), sort_keys=True) + "\n" for instance in instances]
    folder.instances.write_text("".join(lines), encoding="utf-8")
    return {
        "instances_sha256": sha256(folder.instances.read_bytes()),
        "instances": {
            instance.instance_id: {
                "sha256": sha256(line.encode()),
                "repository_sha256": sha256(folder.repository(instance.instance_id).read_bytes()),
                "base_commit": instance.base_commit,
                "fail_to_pass": len(instance.FAIL_TO_PASS),
                "pass_to_pass": len(instance.PASS_TO_PASS),
            }
            for instance, line in zip(instances, lines, strict=True)
        },
    }


async def _validate(
    folder: Folder, drafts: Sequence[Instance], sandbox: SandboxKind
) -> list[Instance]:
    """The instances with their test lists, whose lengths must be the table's."""
    grading.warm_up()
    provider = await open_provider(
        sandbox, image=MINI_IMAGE, run_id="pypi-build", max_parallel=_SANDBOXES
    )
    try:
        _say(provider.why)
        source = FolderSource(folder, drafts)
        instances = await asyncio.gather(*(validated(source, d, provider) for d in drafts))
    finally:
        await provider.close()
    for instance in instances:
        _check_counts(instance)
    return instances


def _check_counts(instance: Instance) -> None:
    release = read_table().release(instance.instance_id)
    found = (len(instance.FAIL_TO_PASS), len(instance.PASS_TO_PASS))
    expected = (release.fail_to_pass, release.pass_to_pass)
    _say(f"{instance.instance_id}: {found[0]} tests fail before and pass after, {found[1]} pass")
    if found != expected:
        raise UsageError(
            f"{instance.instance_id}: fail-to-pass and pass-to-pass are {found}, the table says "
            f"{expected}; the tests come out otherwise under Python "
            f"{sys.version_info.major}.{sys.version_info.minor} or this sandbox"
        )


def _compare(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raise UsageError where a build is not the data set that the manifest describes."""
    for name, entry in expected["instances"].items():
        got = found["instances"].get(name, {})
        different = [key for key in entry if entry[key] != got.get(key)]
        if different:
            raise UsageError(
                f"{name}: {', '.join(different)} differ from {MANIFEST.name}, which describes the "
                "published data set"
            )
    if found != expected:
        raise UsageError(f"the built data set is not the one that {MANIFEST.name} describes")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
