"""Reads the bundled instances, and turns generated tasks into instances."""

from __future__ import annotations

import difflib
import gzip
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from environments.protocols import SandboxSpec, UsageError
from environments.swebench.gitrepo import Repository, build_repository
from environments.swebench.instance import Instance, make_eval_script, parse_instances
from environments.swebench.mini.generator import MiniTask, generate
from environments.swebench.source import TOOLS_DIR, BundledSource

IMAGE = "thundersync/mini:1"
DATA_FILE = "mini.jsonl.gz"
SPLITS = ("train", "eval")
# The training split once more in two parts, to choose settings on: what eval is for measures them.
PARTS = ("fit", "tune")
TUNE = 64
RUNNER = Path(__file__).with_name("runner.py")


def unified_diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A git diff between two sets of text files that hold the same paths."""
    parts = []
    for path in sorted(after):
        if before[path] == after[path]:
            continue
        lines = difflib.unified_diff(
            before[path].splitlines(keepends=True),
            after[path].splitlines(keepends=True),
            f"a/{path}",
            f"b/{path}",
        )
        parts.append(f"diff --git a/{path} b/{path}\n" + "".join(lines))
    return "".join(parts)


def _test_ids(task: MiniTask) -> tuple[list[str], list[str]]:
    """(FAIL_TO_PASS, PASS_TO_PASS): the hidden tests by what they do before the fix."""
    fail, keep = [], []
    for module, functions in zip(task.package.modules, task.package.functions, strict=True):
        for function in functions:
            name = f"tests/test_{module}.py::test_{function.name}"
            for i in range(len(task.cases[function.name])):
                failing = function is task.target and i in task.failing
                (fail if failing else keep).append(f"{name}_{i}")
            if function is task.slow:
                keep.append(f"{name}_load")
    return fail, keep


def make_instance(task: MiniTask, split: str) -> Instance:
    """The SWE-bench instance of a generated task."""
    visible, hidden = task.test_files(hidden=False), task.test_files(hidden=True)
    buggy = task.source_files(fixed=False)
    files = {f"{task.package.name}/__init__.py": ""} | buggy | visible
    commit = _build(tuple(sorted(files.items()))).commit
    test_patch = unified_diff(visible, hidden)
    fail, keep = _test_ids(task)
    return Instance(
        instance_id=f"mini__{task.package.name}-{commit[:10]}",
        repo=f"mini/{task.package.name}",
        base_commit=commit,
        problem_statement=task.issue,
        patch=unified_diff(buggy, task.source_files(fixed=True)),
        test_patch=test_patch,
        FAIL_TO_PASS=tuple(fail),
        PASS_TO_PASS=tuple(keep),
        version="1",
        image=IMAGE,
        eval_script=make_eval_script(commit, test_patch, f"runtests -rA {' '.join(hidden)}"),
        log_parser="parse_log_pytest",
        split=split,
        difficulty=task.difficulty,
        files=files,
    )


def generate_instances(split: str, seed: int) -> Iterator[tuple[MiniTask, Instance]]:
    """An endless stream of one split's tasks; `demo` never meets the bundled train and eval."""
    for task in generate(split, seed):
        yield task, make_instance(task, split)


@lru_cache(maxsize=256)
def _build(files: tuple[tuple[str, str], ...]) -> Repository:
    return build_repository({path: text.encode() for path, text in files})


def data_path(data_dir: str | None) -> Path:
    return Path(data_dir) / DATA_FILE if data_dir else Path(__file__).with_name(DATA_FILE)


def data_hash(data_dir: str | None = None) -> str:
    """SHA-256 of the data file, for the manifest."""
    return hashlib.sha256(data_path(data_dir).read_bytes()).hexdigest()


class MiniSource(BundledSource):
    """The bundled data set. Its repositories are built in memory, once per instance."""

    name = "mini"
    splits: Sequence[str] = (*SPLITS, *PARTS)
    prompt = "short"
    solved_run_is_clean = True

    def __init__(self, data_dir: str | None = None) -> None:
        self._path = data_path(data_dir)
        self._instances: dict[str, list[Instance]] = {}
        self._tools = {"runtests": RUNNER.read_bytes()}

    def instances(self, split: str) -> Sequence[Instance]:
        if split not in self.splits:
            raise UsageError(f"env.split={split!r}: data set 'mini' has {', '.join(self.splits)}")
        if not self._instances:
            try:
                with gzip.open(self._path, "rt", encoding="utf-8") as file:
                    records = [json.loads(line) for line in file]
            except (OSError, EOFError, ValueError) as error:
                raise UsageError(
                    f"env.data_dir: {self._path} cannot be read ({error}); make it with "
                    f"python -m environments.swebench.mini.build"
                ) from error
            instances = parse_instances(records, str(self._path))
            self._instances = {s: [i for i in instances if i.split == s] for s in SPLITS}
            train = self._instances["train"]
            self._instances |= {"fit": train[:-TUNE], "tune": train[-TUNE:]}
        return self._instances[split]

    def _repository(self, instance: Instance) -> Repository:
        if instance.files is None:
            raise UsageError(f"instance {instance.instance_id!r}: field 'files' is missing")
        return _build(tuple(sorted(instance.files.items())))

    def repository(self, instance: Instance) -> bytes:
        return self._repository(instance).tar

    def git_folder(self, instance: Instance) -> bytes:
        return self._repository(instance).git_tar

    def tools(self, instance: Instance) -> Mapping[str, bytes]:
        return self._tools

    def sandbox_spec(self, instance: Instance) -> SandboxSpec:
        return SandboxSpec(
            image=instance.image,
            memory_mb=256,
            pids=64,
            scratch_mb=64,
            environment=sandbox_environment(),
        )


def sandbox_environment() -> dict[str, str]:
    """Environment of the agent's and the verifier's commands."""
    path = [TOOLS_DIR, "/usr/local/bin", "/usr/bin", "/bin"]
    own = os.path.join(sys.base_prefix, "bin")
    return {
        # Where the host's system has no python3, bubblewrap still finds the harness's own.
        "PATH": ":".join(dict.fromkeys([*path, own])),
        "HOME": "/tmp",
        "LC_ALL": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        # Files in a container may belong to another user than the one who runs git.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        "GIT_PAGER": "cat",
    }
