"""Where the instances of one data set come from: the seam between SweBench and mini, pypi, ...

To add a data set: write a class with these members, and name it by dotted path in SOURCES. One in
SWE-bench's own format needs no class: name its file, folder or Hugging Face name.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from environments.protocols import Sandbox, SandboxSpec, UsageError
from environments.swebench.config import SweBenchConfig
from environments.swebench.instance import Instance
from environments.swebench.records import ALIASES, SUFFIXES, names_records

TOOLS_DIR = "/tmp/bin"  # on PATH inside; outside the repository, so no diff and no patch reaches it
SOURCES = {
    "mini": "environments.swebench.mini.dataset:MiniSource",
    "pypi": "environments.swebench.pypi:PypiSource",
}


class TaskSource(Protocol):
    """One data set of instances."""

    name: str
    splits: Sequence[str]
    prompt: str  # short or full: which first message `agent_prompt: auto` means
    # Whether a solved task's test command exits 0 and ends in pytest's line of counts. Then nothing
    # else scores; images of published data sets often hold tests that fail whatever is done.
    solved_run_is_clean: bool
    # Whether a test that must fail is added to the hidden ones (decoy.py): for data sets whose test
    # runner shares its process with the code under test. Where a solved run is clean it works in
    # every task; elsewhere that is found out, task by task, with the gold patch.
    decoy: bool

    def instances(self, split: str) -> Sequence[Instance]:
        """All instances of a split, in a fixed order. Raises UsageError for an unknown split."""
        ...

    def repository(self, instance: Instance) -> bytes | None:
        """A tar of the working tree and .git at base_commit; None where the image holds them."""
        ...

    def git_folder(self, instance: Instance) -> bytes | None:
        """A tar of .git alone, to collect a diff after an agent has damaged its own."""
        ...

    def tools(self, instance: Instance) -> Mapping[str, bytes]:
        """Programs put under TOOLS_DIR before the agent starts, and again for the verifier."""
        ...

    def sandbox_spec(self, instance: Instance) -> SandboxSpec: ...

    async def started(self, instance: Instance, sandbox: Sandbox) -> None:
        """Called last before anybody uses a fresh sandbox, an agent or the verifier."""
        ...

    def start_commit(self, instance: Instance) -> str:
        """What the agent's diff is made against, once a sandbox has been prepared."""
        ...

    def check_engine(self) -> None:
        """Raise UsageError where what sandboxes start from is known to be missing."""
        ...


class BundledSource:
    """What data sets share that bring their repositories along."""

    decoy = False

    async def started(self, instance: Instance, sandbox: Sandbox) -> None:
        """The repository was made without history."""

    def start_commit(self, instance: Instance) -> str:
        return instance.base_commit

    def check_engine(self) -> None:
        """Any sandbox will do."""


def open_source(config: SweBenchConfig) -> TaskSource:
    """The source that `env.dataset` names: a key of SOURCES, records in SWE-bench's format (a file,
    a task repository, a Hugging Face name), or `package.module:Class`."""
    dataset = config.dataset
    if dataset not in SOURCES and names_records(dataset):
        from environments.swebench.published import PublishedSource

        return PublishedSource(config)
    path = SOURCES.get(dataset, dataset)
    module, colon, attribute = path.partition(":")
    if not colon:
        known = ", ".join(sorted([*SOURCES, *ALIASES]))
        raise UsageError(
            f"env.dataset={dataset!r} is unknown; use one of {known}, a Hugging Face name "
            f"(owner/name), a file ({', '.join(SUFFIXES)}), a task repository's folder or "
            "'package.module:Class'"
        )
    try:
        return getattr(importlib.import_module(module), attribute)(config.data_dir)
    except (ModuleNotFoundError, AttributeError) as error:
        raise UsageError(f"env.dataset={dataset!r} cannot be loaded: {error}") from error
