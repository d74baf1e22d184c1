"""Data sets in SWE-bench's own format, whose repositories lie in images: from the Hugging Face
cache, a file or a task repository of swebench 5."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environments.protocols import Sandbox, SandboxSpec, UsageError
from environments.swebench.config import SweBenchConfig
from environments.swebench.history import strip_history
from environments.swebench.image_names import official_image, read_image_table
from environments.swebench.instance import Instance, parse_instance
from environments.swebench.records import read_records

log = logging.getLogger(__name__)

EVAL_SHARE = 0.2  # of the instances, where a data set without a training split is trained on


class PublishedSource:
    """Instances whose images hold the repository in /testbed, owned by `env.user`.

    A row that is no usable instance is said in one line, with its name and field, and the others go
    on. Splits are those of the records' split column. `eval` is `test`, or all rows, where no row
    says eval. There is no `train` but that of the rows: what was made for evaluation is trained on
    only with `env.train_on_evaluation`, and then the fifth with the lowest hashes of their ids is
    eval.
    """

    prompt = "full"
    solved_run_is_clean = False
    decoy = True

    def __init__(self, config: SweBenchConfig) -> None:
        self.name = config.dataset
        self._config = config
        records = read_records(config.dataset, config.data_dir)
        table = read_image_table(config.images)
        self.folders: Mapping[str, Path] = records.folders
        self.complaints: list[str] = list(records.broken)
        found: dict[str, Instance] = {}
        for where, record in records.rows:
            try:
                instance = parse_instance(_completed(record, table), f"{where}: instance")
                if instance.instance_id in found:
                    raise UsageError(f"{where}: instance {instance.instance_id!r} appears twice")
            except UsageError as error:
                self.complaints.append(str(error))
            else:
                found[instance.instance_id] = instance
        for line in self.complaints:
            log.warning(line)
        if not found:
            first = f", the first: {self.complaints[0]}" if self.complaints else ""
            raise UsageError(f"env.dataset={config.dataset}: has no usable instance{first}")
        self._by_split = _by_split(list(found.values()), config.train_on_evaluation)
        self.splits: Sequence[str] = tuple(self._by_split)
        self._starts: dict[str, str] = {}
        self._clean: set[str] = set()

    def instances(self, split: str) -> Sequence[Instance]:
        return self._by_split[split]

    def repository(self, instance: Instance) -> bytes | None:
        return None

    def git_folder(self, instance: Instance) -> bytes | None:
        return None

    def tools(self, instance: Instance) -> Mapping[str, bytes]:
        return {}

    async def started(self, instance: Instance, sandbox: Sandbox) -> None:
        image = instance.image
        start, clean = await strip_history(instance, sandbox, trusted=image in self._clean)
        self._starts[instance.instance_id] = start
        if clean:
            self._clean.add(image)

    def start_commit(self, instance: Instance) -> str:
        return self._starts.get(instance.instance_id, instance.base_commit)

    def sandbox_spec(self, instance: Instance) -> SandboxSpec:
        """The image's own PATH stays, and its shell start-up file is read: published images
        activate their Python environment there."""
        config = self._config
        home = "/root" if config.user == "0" else "/tmp"
        return SandboxSpec(
            image=instance.image,
            memory_mb=config.memory_mb or 4096,
            cpus=config.cpus or 1.0,
            pids=512,
            scratch_mb=1024,
            user=config.user,
            environment={
                "HOME": home,
                "BASH_ENV": "/root/.bashrc",
                "LC_ALL": "C.UTF-8",
                "PYTHONDONTWRITEBYTECODE": "1",
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
                "GIT_PAGER": "cat",
                "PAGER": "cat",
            },
        )

    def check_engine(self) -> None:
        """One clear line where no engine answers or it has none of the images; raises UsageError.

        Where only some are missing that is said once, and their tasks are lost as `image`.
        """
        from environments.swebench.engine import missing_images

        images = {i.image for part in self._by_split.values() for i in part}
        missing = missing_images(images, f"env.dataset={self.name}")
        if not missing:
            return
        line = (
            f"env.dataset={self.name}: {len(missing)} of {len(images)} images are not on the "
            f"engine, such as {missing[0]}; fetch them, where there is a network: "
            f"python -m environments.swebench.images pull env.dataset={self.name}"
        )
        if len(missing) == len(images):
            raise UsageError(line)
        log.warning(line)


def _completed(record: Mapping[str, Any], table: Mapping[str, str]) -> dict[str, Any]:
    """The record with what older revisions leave to convention: the image and the way to count."""
    completed = dict(record)
    name = record.get("instance_id")
    if isinstance(name, str) and name:
        if name in table:
            completed["image"] = table[name]
        completed.setdefault("image", official_image(name))
    completed.setdefault("eval_type", "pass_and_fail")
    return completed


def _by_split(instances: list[Instance], train_on_evaluation: bool) -> dict[str, list[Instance]]:
    parts: dict[str, list[Instance]] = {}
    for instance in instances:
        parts.setdefault(instance.split, []).append(instance)
    if train_on_evaluation and "train" not in parts:
        by_hash = sorted(instances, key=lambda i: hashlib.sha256(i.instance_id.encode()).digest())
        share = by_hash[: max(1, round(EVAL_SHARE * len(by_hash)))]
        held_out = {i.instance_id for i in share}
        if 0 < len(parts.get("eval", [])) < len(instances):
            held_out = {i.instance_id for i in parts["eval"]}
        for part in ("train", "eval"):
            chosen = [i for i in instances if (i.instance_id in held_out) == (part == "eval")]
            if chosen:
                parts[part] = chosen
    rest = parts.get("test") or [i for i in instances if i.split != "train"]
    if rest:
        parts.setdefault("eval", rest)
    return parts
