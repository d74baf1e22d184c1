"""Where the instances of one data set come from: the seam between SweBench and mini, pypi, ...

To add a data set: write a class with these members, and name it by dotted path in SOURCES.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from environments.protocols import SandboxSpec, UsageError
from environments.swebench.instance import Instance

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


def open_source(dataset: str, data_dir: str | None) -> TaskSource:
    """The source that `env.dataset` names: a key of SOURCES, or `package.module:Class`."""
    path = SOURCES.get(dataset, dataset)
    module, colon, attribute = path.partition(":")
    if not colon:
        known = ", ".join(sorted(SOURCES))
        raise UsageError(
            f"env.dataset={dataset!r} is unknown; use one of {known} or 'package.module:Class'"
        )
    try:
        return getattr(importlib.import_module(module), attribute)(data_dir)
    except (ModuleNotFoundError, AttributeError) as error:
        raise UsageError(f"env.dataset={dataset!r} cannot be loaded: {error}") from error
