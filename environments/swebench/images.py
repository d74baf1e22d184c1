"""The images of a data set: python -m environments.swebench.images COMMAND [env.KEY=VALUE ...]

COMMAND: `list` says which are on the engine, `pull` fetches the others, `build` makes those that
have a Dockerfile in a task repository, `disk` measures what is missing and what is free; pull does
so before it starts. Keys: env.dataset (default verified), env.data_dir, env.images, env.registry,
env.split (default all). One JSON line on standard output; exit 2 and one line for a mistake, 1
where an image could not be had.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments.protocols import UsageError
from environments.swebench.config import SweBenchConfig
from environments.swebench.engine import open_engine, present_images, with_tag
from environments.swebench.image_names import from_registry
from environments.swebench.instance import Instance
from environments.swebench.published import PublishedSource
from environments.swebench.records import names_records
from environments.swebench.registry import layer_bytes

COMMANDS = ("list", "pull", "build", "disk")
_KEYS = ("dataset", "data_dir", "images", "registry", "split")
UNPACKED = 3.0  # bytes on the disk of a byte in a registry: an assumption, gzip's usual factor
KEPT_FREE = 5 << 30  # bytes that a pull must leave on the disk


@dataclass(frozen=True)
class Need:
    """What is missing: `bytes_to_fetch` counts a layer that images share once; `unknown` are the
    images that no registry told the size of; `free_bytes` is None where the engine's disk is not
    this machine's."""

    missing: list[str]
    bytes_to_fetch: int
    unknown: list[str]
    free_bytes: int | None

    @property
    def bytes_on_disk(self) -> int:
        return int(self.bytes_to_fetch * UNPACKED)


@dataclass
class Outcome:
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return 0
    try:
        command, config, split = parse(arguments)
        source = PublishedSource(config)
        instances = _chosen(source, split)
        client = open_engine(f"env.dataset={config.dataset}")
        try:
            report = _COMMANDS[command](client, config, source, instances)
        finally:
            client.close()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report))
    return 1 if report.get("failed") else 0


def parse(arguments: Sequence[str]) -> tuple[str, SweBenchConfig, str | None]:
    """(command, config, split). Raises UsageError for anything that is neither."""
    command, config, split = None, SweBenchConfig(dataset="verified"), None
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals and argument in COMMANDS and command is None:
            command = argument
        elif equals and key.startswith("env.") and key[4:] in _KEYS:
            if key == "env.split":
                split = value
            else:
                setattr(config, key[4:], value)
        else:
            keys = ", ".join(f"env.{key}=" for key in _KEYS)
            raise UsageError(f"{argument!r} is unknown; use {' | '.join(COMMANDS)} and {keys}")
    if command is None:
        raise UsageError(f"nothing to do; use one of {', '.join(COMMANDS)}")
    if not names_records(config.dataset):
        raise UsageError(
            f"env.dataset={config.dataset}: its images are not per instance; "
            "python -m environments.sandbox.images build makes the one it needs"
        )
    config.check()
    return command, config, split


def _chosen(source: PublishedSource, split: str | None) -> list[Instance]:
    if split is not None and split not in source.splits:
        raise UsageError(f"env.split={split!r}: {source.name!r} has {', '.join(source.splits)}")
    parts = [split] if split is not None else source.splits
    return list({i.instance_id: i for p in parts for i in source.instances(p)}.values())


def measure(client: Any, config: SweBenchConfig, instances: Sequence[Instance]) -> Need:
    """What has to be fetched, from the registry's own figures, and what is free."""
    present = present_images(client)
    missing = sorted({with_tag(i.image) for i in instances} - present.keys())
    layers: dict[str, int] = {}
    unknown = []
    for image in missing:
        try:
            layers |= layer_bytes(_pulled_name(image, config))
        except (OSError, KeyError, StopIteration, ValueError):
            unknown.append(image)
    root = Path(client.info()["DockerRootDir"])
    free = shutil.disk_usage(root).free if root.is_dir() else None
    return Need(missing, sum(layers.values()), unknown, free)


def _pulled_name(image: str, config: SweBenchConfig) -> str:
    return from_registry(image, config.registry) if config.registry else image


def _list(
    client: Any, config: SweBenchConfig, source: PublishedSource, instances: Sequence[Instance]
) -> dict[str, Any]:
    present = present_images(client)
    rows = [
        {
            "instance": i.instance_id,
            "image": i.image,
            "present": with_tag(i.image) in present,
            "size_mb": present.get(with_tag(i.image), 0) >> 20,
            "dockerfile": _dockerfile(source, i) is not None,
        }
        for i in instances
    ]
    for row in rows:
        state = f"{row['size_mb']} MB" if row["present"] else "missing"
        _say(f"{row['instance']}: {row['image']}: {state}")
    return {"images": rows, "missing": sum(not row["present"] for row in rows)}


def _disk(
    client: Any, config: SweBenchConfig, source: PublishedSource, instances: Sequence[Instance]
) -> dict[str, Any]:
    need = measure(client, config, instances)
    _say(_need_line(need))
    return {
        "missing": len(need.missing),
        "bytes_to_fetch": need.bytes_to_fetch,
        "bytes_on_disk": need.bytes_on_disk,
        "unknown": len(need.unknown),
        "free_bytes": need.free_bytes,
    }


def _need_line(need: Need) -> str:
    free = "unknown" if need.free_bytes is None else f"{need.free_bytes / 1e9:.1f} GB"
    line = (
        f"{len(need.missing)} images missing: {need.bytes_to_fetch / 1e9:.3f} GB to fetch, about "
        f"{need.bytes_on_disk / 1e9:.3f} GB on disk (x{UNPACKED:g} unpacked); free: {free}"
    )
    if need.unknown:
        line += f"; {len(need.unknown)} of unknown size, such as {need.unknown[0]}"
    return line


def _pull(
    client: Any, config: SweBenchConfig, source: PublishedSource, instances: Sequence[Instance]
) -> dict[str, Any]:
    """Fetch what is missing, under the names that sandboxes start from."""
    need = measure(client, config, instances)
    _say(_need_line(need))
    if need.free_bytes is not None and need.bytes_on_disk + KEPT_FREE > need.free_bytes:
        raise UsageError(
            f"env.dataset={config.dataset}: {need.bytes_on_disk / 1e9:.1f} GB are needed and "
            f"{KEPT_FREE / 1e9:.1f} GB kept free, {need.free_bytes / 1e9:.1f} GB are free on the "
            "engine's disk; free some, or pull one split: env.split="
        )

    def fetch(image: str) -> None:
        name = _pulled_name(image, config)
        repository, _, tag = name.rpartition(":")
        for step in client.api.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in step:
                raise RuntimeError(step["error"])
        if name != image:
            client.api.tag(name, *image.rsplit(":", 1))
            client.api.remove_image(name)

    return _each(need.missing, fetch, "pulled")


def _build(
    client: Any, config: SweBenchConfig, source: PublishedSource, instances: Sequence[Instance]
) -> dict[str, Any]:
    """Build what is missing and has a Dockerfile, in its task's folder."""
    present = present_images(client)
    missing = {with_tag(i.image): i for i in instances if with_tag(i.image) not in present}
    without = [i.instance_id for i in missing.values() if _dockerfile(source, i) is None]
    if without and len(without) == len(missing):
        raise UsageError(
            f"env.dataset={config.dataset}: none of the {len(missing)} missing images has a "
            "Dockerfile; only task repositories carry them: pull them instead"
        )

    def make(image: str) -> None:
        for step in client.api.build(
            path=str(source.folders[missing[image].instance_id]), tag=image, rm=True, forcerm=True,
            decode=True,
        ):  # fmt: skip
            if "error" in step:
                raise RuntimeError(step["error"])

    buildable = [image for image, i in missing.items() if i.instance_id not in without]
    report = _each(buildable, make, "built")
    return report | {"without_dockerfile": without}


def _dockerfile(source: PublishedSource, instance: Instance) -> Path | None:
    folder = source.folders.get(instance.instance_id)
    path = folder / "Dockerfile" if folder else None
    return path if path is not None and path.is_file() else None


def _each(images: Sequence[str], work: Callable[[str], None], verb: str) -> dict[str, Any]:
    """Each in turn; one that fails is named and the others go on."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    outcome = Outcome()
    for number, image in enumerate(images, 1):
        try:
            work(image)
        except (DockerException, RequestException, RuntimeError, TypeError) as error:
            outcome.failed[image] = " ".join(str(error).split())[:200]
            _say(f"[{number}/{len(images)}] {image}: not {verb}: {outcome.failed[image]}")
        else:
            outcome.done.append(image)
            _say(f"[{number}/{len(images)}] {image}: {verb}")
    return {verb: outcome.done, "failed": outcome.failed}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


_COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {
    "list": _list,
    "pull": _pull,
    "build": _build,
    "disk": _disk,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
