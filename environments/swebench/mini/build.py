"""python -m environments.swebench.mini.build [seed=1] [train=512] [eval=96] [out=FILE]

Generates the bundled data set, and validates every instance by running its hidden tests before and
after the gold patch. The same seed gives the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from environments.protocols import UsageError
from environments.swebench.instance import Instance
from environments.swebench.mini.dataset import RUNNER, data_path, generate_instances

SEED, TRAIN, EVAL = 1, 512, 96


def encode(instances: Iterable[Instance]) -> bytes:
    """The data file: gzipped JSON lines without a time stamp."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as file:
        for instance in instances:
            line = json.dumps(instance.record(), sort_keys=True, separators=(",", ":"))
            file.write(line.encode() + b"\n")
    return buffer.getvalue()


def generate_split(split: str, count: int, seed: int) -> list[Instance]:
    return [i for _, i in itertools.islice(generate_instances(split, seed), count)]


def validate(instance: Instance) -> None:
    """Raise UsageError unless the hidden tests behave as the instance says, before and after."""
    with tempfile.TemporaryDirectory(prefix="mini-") as folder:
        for path, text in (instance.files or {}).items():
            target = Path(folder, path)
            target.parent.mkdir(exist_ok=True)
            target.write_text(text)
        _apply(folder, instance, instance.test_patch)
        before = _passing(folder)
        _apply(folder, instance, instance.patch)
        after = _passing(folder)
    fail, keep = set(instance.FAIL_TO_PASS), set(instance.PASS_TO_PASS)
    name = instance.instance_id
    if before != keep:
        raise UsageError(
            f"{name}: before the fix {sorted(before ^ keep)[0]} is not as PASS_TO_PASS"
        )
    if after != fail | keep:
        raise UsageError(f"{name}: after the fix {sorted(after ^ (fail | keep))[0]} does not pass")


def _apply(folder: str, instance: Instance, patch: str) -> None:
    done = subprocess.run(
        ["git", "apply", "-"], input=patch, text=True, cwd=folder, capture_output=True, check=False
    )
    if done.returncode:
        raise UsageError(f"{instance.instance_id}: a patch does not apply: {done.stderr.strip()}")


def _passing(folder: str) -> set[str]:
    command = [sys.executable, "-ISB", str(RUNNER), "-rA"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    lines = (line.split() for line in done.stdout.splitlines())
    return {words[1] for words in lines if words[:1] == ["PASSED"]}


def main(arguments: list[str]) -> int:
    values = {"seed": str(SEED), "train": str(TRAIN), "eval": str(EVAL), "out": ""}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in values:
            print(f"unknown argument {argument!r}; use {'= '.join(values)}=", file=sys.stderr)
            return 2
        values[key] = value
    seed = int(values["seed"])
    instances = generate_split("train", int(values["train"]), seed)
    instances += generate_split("eval", int(values["eval"]), seed)
    for number, instance in enumerate(instances, 1):
        validate(instance)
        if number % 100 == 0:
            print(f"{number} of {len(instances)} validated", file=sys.stderr)
    data = encode(instances)
    out = Path(values["out"]) if values["out"] else data_path(None)
    out.write_bytes(data)
    print(f"{out.name}: {len(instances)} instances, {len(data)} bytes", file=sys.stderr)
    print(f"sha256 {hashlib.sha256(data).hexdigest()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
