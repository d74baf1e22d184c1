"""TerminalBench: tasks in Terminal-Bench 4.0's format, judged by the state of the machine."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import posixpath
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from environments.protocols import (
    ExecResult,
    ImageBuild,
    InfrastructureError,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    Submission,
    Task,
    UsageError,
    Verdict,
)
from environments.swebench.prompt import (
    FULL_RULE,
    SHORT_RULE,
    ObservationRule,
    parse_action,
)
from environments.terminal_bench import (
    dataset,
    dockerfile,
    folder,
    network,
    prompt,
    schema,
    tasktoml,
    verify,
)
from environments.terminal_bench.config import TerminalBenchConfig
from environments.terminal_bench.dataset import TaskSet
from environments.terminal_bench.folder import TaskFolder

# What root may do in a container, of Docker's own defaults those that package managers and service
# users need: no raw sockets, no devices, no chroot, no audit log.
ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
_ENCODED_CHUNK = 64 << 10  # a command is one argument of bash, which the kernel bounds at 128 KiB


class TerminalBench:
    """Environment of one data set of task folders. The agent acts in the sandbox that is judged."""

    def __init__(self, config: TerminalBenchConfig | None = None) -> None:
        self.config = config or TerminalBenchConfig()
        self.config.check()
        self.name = "terminal_bench"
        self.dataset = self.config.dataset
        self.command_timeout_s = self.config.command_timeout_s
        style = self.config.agent_prompt
        self._short = (self.dataset == "mini") if style == "auto" else style == "short"
        rule = SHORT_RULE if self._short else FULL_RULE
        self.rule = ObservationRule(
            self.config.observation_lines or rule.lines,
            self.config.observation_characters or rule.characters,
        )
        self._sets: dict[str, TaskSet] = {}
        self._folders: dict[str, TaskFolder] = {}

    def warm_up(self) -> None:
        """Nothing here is slow to import."""

    def data_hashes(self) -> Mapping[str, str]:
        """Per split: sha256 over its runnable task folders, name by name."""
        hashes = {}
        for split in dataset.splits(self.dataset):
            digest = hashlib.sha256()
            for task in self._set(split).tasks:
                digest.update(f"{task.name} {task.sha256}\n".encode())
            hashes[f"{self.dataset}/{split}"] = digest.hexdigest()
        return hashes

    def _set(self, split: str) -> TaskSet:
        """Read once; what is left out is said once, a line each."""
        if split not in self._sets:
            self._sets[split] = dataset.read(self.config, split)
            for line in self._sets[split].refused:
                print(f"task left out: {line}", file=sys.stderr)
        return self._sets[split]

    def tasks(self, split: str) -> Sequence[Task]:
        return [self.task(found, split) for found in self._set(split).tasks]

    def task(self, found: TaskFolder, split: str) -> Task:
        self._folders[found.name] = found
        return Task(
            task_id=found.name,
            split=split,
            difficulty=str(found.settings.metadata.get("difficulty", "unknown")),
            payload={"path": str(found.path), "sha256": found.sha256},
            time_limit_s=found.settings.agent_timeout_s,
        )

    def folder(self, task: Task) -> TaskFolder:
        """The folder behind a task; one that came from another process is read again."""
        if task.task_id not in self._folders:
            self._folders[task.task_id] = folder.load(Path(task.payload["path"]))
        return self._folders[task.task_id]

    def first_message(self, task: Task) -> str:
        found = self.folder(task)
        if self._short:
            return found.instruction
        return prompt.full_prompt(
            found.instruction,
            _workdir(found) or "its working folder",
            network=self._network(found),
            processes=self._keep,
        )

    @property
    def _keep(self) -> bool:
        return self.config.agent_processes == "keep"

    def _network(self, found: TaskFolder) -> network.Network:
        return network.granted(found, self.config)

    def sandbox_spec(self, task: Task) -> SandboxSpec:
        """cpus, memory_mb and the network as the task says. storage_mb bounds each folder in memory
        and each file, because no engine bounds a container's layer on an ordinary disk."""
        found = self.folder(task)
        settings, reach = found.settings, self._network(found)
        file, (agent, verifier) = found.dockerfile, _users(found)
        root = _is_root(agent)
        build = None
        if file is not None:
            alone = not file.engine_needed_for(found.contents)
            limit_s, build_network = settings.build_timeout_s, "none" if alone else None
            build = ImageBuild(found.context, file.base, limit_s, build_network)
        environment = {**({"HOME": "/root"} if root else {}), **settings.environment}
        if file is not None:  # an engine reads ENV itself, a sandbox without images does not
            environment = {**file.environment, **environment}
        return SandboxSpec(
            image=found.image,
            workdir=_workdir(found),
            memory_mb=settings.memory_mb,
            cpus=settings.cpus,
            pids=self.config.pids,
            scratch_mb=settings.storage_mb,
            network="bridge" if reach.public else "none",
            user=settings.agent_user,
            environment=environment,
            scratch_paths=verify.SCRATCH_PATHS,
            capabilities=ROOT_CAPABILITIES if root or _is_root(verifier) else (),
            file_mb=settings.storage_mb,
            build=build,
            allowed_hosts=reach.agent_hosts,
            later_hosts=reach.later_hosts,
            later_user=settings.verifier_user if _two_users(found) else None,
        )

    async def prepare(self, task: Task, sandbox: Sandbox) -> None:
        found = self.folder(task)
        if not sandbox.from_image:
            why = self._engine_needed(found)
            if why:
                message = f"{found.name}: needs sandbox=docker: {why}"
                raise InfrastructureError("image", message)
            assert found.dockerfile is not None
            limit_s = found.settings.build_timeout_s
            await dockerfile.play(found.dockerfile, found.contents, sandbox, limit_s)
        if found.settings.healthcheck is not None:
            await _become_healthy(found, found.settings.healthcheck, sandbox)

    def _engine_needed(self, found: TaskFolder) -> str:
        if found.dockerfile is None:
            return f"environment.docker_image = {found.settings.docker_image}"
        reach = self._network(found)
        if reach.key:
            return f"{reach.key} = {schema.PUBLIC if reach.public else schema.ALLOWLIST}"
        user, verifier = _users(found)
        if _two_users(found):
            return f"agent.user = {user or 'root'}, verifier.user = {verifier or 'root'}"
        if user not in dockerfile.AGENT:
            return f"its user is {user or 'root'}"
        return found.dockerfile.engine_needed_for(found.contents)

    def action(self, text: str) -> str | None:
        return parse_action(text)

    def observation(self, result: ExecResult) -> str:
        return self.rule.apply(result)

    async def collect(self, task: Task, sandbox: Sandbox) -> Submission:
        """The machine itself: nothing is copied out of it."""
        return Submission("", sandbox)

    async def verify(
        self, task: Task, submission: Submission, provider: SandboxProvider
    ) -> Verdict:
        """What tests/test.sh writes as the reward, run in the agent's machine."""
        assert submission.sandbox is not None
        found = self.folder(task)
        reach = self._network(found)
        return await verify.verify(
            found,
            submission.sandbox,
            keep_processes=self._keep,
            hosts=None if reach.verifier_hosts == reach.agent_hosts else reach.verifier_hosts,
            hand_over=_two_users(found),
        )

    def oracle_commands(self, task: Task) -> Sequence[str]:
        """Write solution/ into /solution and run solve.sh there, as the reference oracle does."""
        found = self.folder(task)
        if "solve.sh" not in found.solution:
            path = found.path / "solution/solve.sh"
            raise UsageError(f"agent=oracle: {path} is missing; name only tasks that have one")
        lines = []
        for path, file in found.solution.items():
            target = shlex.quote(f"{verify.SOLUTION}/{path}")
            lines.append(f"mkdir -p {shlex.quote(posixpath.dirname(f'/solution/{path}'))}")
            text = base64.b64encode(file.content).decode()
            for start in range(0, len(text), _ENCODED_CHUNK):
                chunk = text[start : start + _ENCODED_CHUNK]
                lines.append(f"base64 -d >>{target} <<'EOF_SOLUTION'\n{chunk}\nEOF_SOLUTION")
            if file.executable:
                lines.append(f"chmod 755 {target}")
        exports = "".join(
            f"export {name}={shlex.quote(value)}; "
            for name, value in found.settings.solution_env.items()
        )
        return _few([*lines, f"{exports}bash {verify.SOLUTION}/solve.sh"])


def _few(lines: Sequence[str]) -> list[str]:
    """As few commands as the kernel's bound on one argument allows: each costs a turn."""
    commands = [lines[0]]
    for line in lines[1:]:
        if len(commands[-1]) + len(line) < _ENCODED_CHUNK:
            commands[-1] += "\n" + line
        else:
            commands.append(line)
    return commands


def _workdir(found: TaskFolder) -> str:
    """Where commands run; "" where only the image knows."""
    named = found.settings.workdir or (found.dockerfile.workdir if found.dockerfile else "")
    return named if named.startswith("/") else ""


def _users(found: TaskFolder) -> tuple[str, str]:
    """The agent's and the verifier's; "" where only a base image or a prebuilt one knows."""
    own = found.dockerfile.user if found.dockerfile else ""
    return found.settings.agent_user or own, found.settings.verifier_user or own


def _is_root(user: str) -> bool:
    return user.partition(":")[0] in ("", "root", "0")


def _two_users(found: TaskFolder) -> bool:
    agent, verifier = _users(found)
    return agent != verifier


async def _become_healthy(found: TaskFolder, check: tasktoml.Healthcheck, sandbox: Sandbox) -> None:
    """Docker's rules: failures in the start period are free, then `retries` in a row are too many.
    The task's own fault or the machine's, never the agent's."""
    started = time.monotonic()
    failures = 0
    while True:
        result = await sandbox.exec(check.command, timeout_s=check.timeout_s)
        if result.exit_code == 0:
            return
        starting = time.monotonic() - started < check.start_period_s
        failures += not starting
        if failures >= check.retries:
            said = " ".join(result.output[-200:].split())
            message = f"{found.name}: environment.healthcheck fails {failures} times: {said!r}"
            raise InfrastructureError("start", message)
        await asyncio.sleep(check.start_interval_s if starting else check.interval_s)
