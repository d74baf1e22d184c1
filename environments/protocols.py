"""The nouns and seams of tasks and sandboxes; this package knows nothing of training.

A `Sandbox` runs commands, an `Environment` says what a task is and how it is judged.
harness.protocols re-exports these names, so that the rest of the code has one place to import from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from environments.values import value

InfrastructureKind = Literal[
    "image", "start", "exec_transport", "out_of_memory", "disk", "verifier_timeout", "parser",
    "teacher", "engine",
]  # fmt: skip


class InfrastructureError(Exception):
    """A failure that is not the agent's: it loses a trajectory, it never becomes a zero reward."""

    def __init__(self, kind: InfrastructureKind, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind: InfrastructureKind = kind


class UsageError(Exception):
    """A wrong setting or input: one clear line that names the key, the value and the way out."""


@value
class ExecResult:
    """What one command left behind.

    `output` is stdout and stderr in order of arrival, decoded as UTF-8 with replacement; where more
    than `max_output_bytes` arrived its head and its tail are kept, with one line between them that
    says how many bytes were left out (`omitted_bytes`). `exit_code` is None where the command was
    killed by its timeout; `killed` says that a signal ended its shell. `cpu_s` is the CPU time of
    the processes that have ended with it.
    """

    output: str
    exit_code: int | None
    duration_s: float
    timed_out: bool = False
    omitted_bytes: int = 0
    out_of_memory: bool = False
    cpu_s: float = 0.0
    killed: bool = False


@dataclass(frozen=True)
class ImageBuild:
    """How a container engine makes an image that it lacks: a tar of a Dockerfile and its context.
    `base` is the image that the Dockerfile starts from, for the choice of engine; `network` is what
    its commands have, None the engine's default."""

    context: bytes = field(repr=False)
    base: str
    timeout_s: float = 600.0
    network: Literal["none"] | None = None


@dataclass(frozen=True)
class SandboxSpec:
    """What a sandbox is made of. `image` is read by container engines; bubblewrap uses the host's
    system read-only and the folders in `read_only_binds` (host path -> path inside).

    Folders in `scratch_paths` are empty, writable and in memory, `scratch_mb` each; bubblewrap adds
    /tmp and the workdir. Container engines alone know an image's own user and workdir ("" means
    those), `build`, `capabilities`, the network `bridge`, and `file_mb`, which bounds each file.

    A container without a network can reach `allowed_hosts` (names, or `*.` and a name), and after
    `Sandbox.allow_hosts` those of them and of `later_hosts` that it names, and nothing else.
    Commands and files in it are `user`'s, and after `Sandbox.hand_over` `later_user`'s (None: there
    is no other)."""

    image: str
    workdir: str = "/testbed"
    memory_mb: int = 512
    cpus: float = 1.0
    pids: int = 256
    scratch_mb: int = 256
    network: Literal["none", "bridge"] = "none"
    user: str = "65532"
    environment: Mapping[str, str] = field(default_factory=dict)
    read_only_binds: Mapping[str, str] = field(default_factory=dict)
    scratch_paths: Sequence[str] = ("/tmp",)
    capabilities: Sequence[str] = ()
    file_mb: int | None = None
    build: ImageBuild | None = None
    allowed_hosts: Sequence[str] = ()
    later_hosts: Sequence[str] = ()
    later_user: str | None = None

    def __post_init__(self) -> None:
        if self.network != "none" and (self.allowed_hosts or self.later_hosts):
            raise ValueError(f"network={self.network}: allowed hosts are for network=none")


class Sandbox(Protocol):
    """One isolated machine. Not shared between tasks: `exec` runs one command at a time."""

    sandbox_id: str
    from_image: bool  # whether its files are those of the spec's image

    async def exec(
        self, command: str, *, timeout_s: float, max_output_bytes: int = 65536
    ) -> ExecResult:
        """Run `command` with bash in the workdir. Raises InfrastructureError, never for the agent's
        fault."""
        ...

    async def put(self, files: Mapping[str, bytes], *, base: str | None = None) -> None:
        """Write files (path absolute or below `base`, default the workdir; parents are made; mode
        0755 if the content starts with '#!'). A path that ends in '.tar' and starts with '@' is
        unpacked at `base`."""
        ...

    async def get(self, path: str) -> bytes: ...

    async def end_processes(self) -> None:
        """Kill whatever commands have left running. Afterwards nothing inside runs; raises
        InfrastructureError where something cannot be killed."""
        ...

    async def allow_hosts(self, hosts: Sequence[str]) -> None:
        """From now on these can be reached and no others, of those that the spec named; open
        connections end. Raises InfrastructureError."""
        ...

    async def hand_over(self, folders: Sequence[str]) -> None:
        """From now on commands and files are the spec's `later_user`'s, and `folders` open to it
        alone. What still runs goes on as who it is. Raises OSError where a path is no folder,
        InfrastructureError where there is no later user."""
        ...

    async def stop(self) -> None:
        """End every process inside and remove every trace, verified. Idempotent."""
        ...


@dataclass
class SandboxCounters:
    """`warm` starts were served by a sandbox made ahead, `engine_losses` times an engine or a host
    of sandboxes went away; `lost` sandboxes ended with their host."""

    created: int = 0
    removed: int = 0
    leaked: int = 0
    warm: int = 0
    engine_losses: int = 0
    lost: int = 0


class SandboxProvider(Protocol):
    """Starts sandboxes of one kind (docker, bubblewrap) and accounts for every one of them."""

    kind: str
    why: str  # one line: why this kind was taken, shown first and kept in the manifest
    counters: SandboxCounters

    async def start(self, spec: SandboxSpec) -> Sandbox: ...

    async def close(self) -> None:
        """Stop what is left and reap. Afterwards counters.leaked is final."""
        ...


@dataclass(frozen=True)
class Task:
    """One problem. `difficulty` is a coarse label for counting (losses, drops), `payload` is the
    environment's own record (for swebench: the instance as a dict). `time_limit_s` is the task's
    own limit on its agent; the lower one of it and rollout.time_limit_s holds."""

    task_id: str
    split: str
    difficulty: str
    payload: Mapping[str, Any] = field(repr=False)
    time_limit_s: float = math.inf


@dataclass(frozen=True)
class Submission:
    """What is judged: the agent's diff, or, where the end state is the machine itself, the
    sandbox. `left_out` are the paths of its work that no verifier gets to see."""

    patch: str
    sandbox: Sandbox | None = None
    left_out: Sequence[str] = ()


@dataclass(frozen=True)
class Verdict:
    """The judgement of one submission. `reward` is finite; `report` goes into the records."""

    reward: float
    report: Mapping[str, Any]


class Environment(Protocol):
    """A family of tasks: what the agent sees, how its work is collected, how it is judged."""

    name: str
    dataset: str
    command_timeout_s: float

    def warm_up(self) -> None:
        """Do slow imports now (called in a thread while other parts start)."""
        ...

    def data_hashes(self) -> Mapping[str, str]:
        """Name -> sha256 of the data that tasks come from, for the manifest."""
        ...

    def tasks(self, split: str) -> Sequence[Task]: ...

    def first_message(self, task: Task) -> str: ...

    def sandbox_spec(self, task: Task) -> SandboxSpec: ...

    async def prepare(self, task: Task, sandbox: Sandbox) -> None:
        """Put the task's starting state into a fresh sandbox."""
        ...

    def action(self, text: str) -> str | None:
        """The bash command in an assistant message; None means submit."""
        ...

    def observation(self, result: ExecResult) -> str:
        """What the agent reads after a command, truncated by the environment's stated rule."""
        ...

    async def collect(self, task: Task, sandbox: Sandbox) -> Submission: ...

    async def verify(
        self, task: Task, submission: Submission, provider: SandboxProvider
    ) -> Verdict: ...

    def oracle_commands(self, task: Task) -> Sequence[str]:
        """Commands that bring a prepared sandbox to the gold solution (agent=oracle)."""
        ...
