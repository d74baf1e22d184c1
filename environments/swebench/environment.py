"""SweBench: tasks in SWE-bench's format, solved in a repository and judged by hidden tests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from environments.protocols import (
    ExecResult,
    InfrastructureError,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    Submission,
    Task,
    UsageError,
    Verdict,
)
from environments.swebench import prompt, verify
from environments.swebench.config import SweBenchConfig
from environments.swebench.instance import Instance, parse_instance
from environments.swebench.source import TaskSource, open_source
from environments.swebench.steering import drop_files, steering_in

MAX_PATCH_BYTES = 1 << 20
_COLLECT_TIMEOUT_S = 60.0
_PATCH_FILE = "/tmp/.submission.diff"


class SweBench:
    """Environment of one SWE-bench-format data set. The agent works on the repository at
    base_commit; its diff is judged in a fresh sandbox (verify.py) by FAIL_TO_PASS and PASS_TO_PASS.
    """

    def __init__(self, config: SweBenchConfig | None = None) -> None:
        self.config = config or SweBenchConfig()
        self.config.check()
        self.name = "swebench"
        self.dataset = self.config.dataset
        self.command_timeout_s = self.config.command_timeout_s
        self.source: TaskSource = open_source(self.config)
        style = self.config.agent_prompt
        self._short = (self.source.prompt if style == "auto" else style) == "short"
        rule = prompt.SHORT_RULE if self._short else prompt.FULL_RULE
        self.rule = prompt.ObservationRule(
            self.config.observation_lines or rule.lines,
            self.config.observation_characters or rule.characters,
        )
        self._instances: dict[str, Instance] = {}

    def warm_up(self) -> None:
        """Look for the images, and import swebench's grading (3 s), before anything is timed."""
        from environments.swebench.grading import warm_up

        self.source.check_engine()
        warm_up()

    def data_hashes(self) -> Mapping[str, str]:
        """Per split: sha256 over its instances' records, in order."""
        hashes = {}
        for split in self.source.splits:
            digest = hashlib.sha256()
            for instance in self.source.instances(split):
                digest.update(json.dumps(instance.record(), sort_keys=True).encode())
            hashes[f"{self.dataset}/{split}"] = digest.hexdigest()
        return hashes

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self.source.splits:
            known = ", ".join(self.source.splits)
            line = f"env.split={split!r}: data set {self.dataset!r} has {known}"
            if split == "train":
                line += (
                    " and is for evaluation; train on another env.dataset, such as pypi, or on "
                    "rows whose split column says train, or take "
                    "env.train_on_evaluation=true: its own figures are worth nothing then"
                )
            raise UsageError(line)
        return [self.task(instance) for instance in self.source.instances(split)]

    def task(self, instance: Instance) -> Task:
        """A Task of one instance, of this data set or made on the fly."""
        self._instances[instance.instance_id] = instance
        return Task(instance.instance_id, instance.split, instance.difficulty, instance.record())

    def instance(self, task: Task) -> Instance:
        """The instance behind a task; one that came from another process is parsed again."""
        if task.task_id not in self._instances:
            self._instances[task.task_id] = parse_instance(task.payload, "task")
        return self._instances[task.task_id]

    def first_message(self, task: Task) -> str:
        instance = self.instance(task)
        if self._short:
            return prompt.short_prompt(instance)
        return prompt.full_prompt(instance, self.source.sandbox_spec(instance).workdir)

    def sandbox_spec(self, task: Task) -> SandboxSpec:
        return self.source.sandbox_spec(self.instance(task))

    async def prepare(self, task: Task, sandbox: Sandbox) -> None:
        await verify.prepare(self.source, self.instance(task), sandbox)

    def action(self, text: str) -> str | None:
        return prompt.parse_action(text)

    def observation(self, result: ExecResult) -> str:
        return self.rule.apply(result)

    async def collect(self, task: Task, sandbox: Sandbox) -> Submission:
        """The agent's diff against what it found: new files too, binary-safe, no steering files.

        Bytes that are not UTF-8 survive as surrogates. Where the agent has destroyed .git it is
        laid down again first; a diff that cannot be made even then, that a process of the agent's
        takes away, or that is over MAX_PATCH_BYTES, is an empty submission.
        """
        instance = self.instance(task)
        start = self.source.start_commit(instance)
        git = "git -c core.quotepath=false -c diff.noprefix=false -c core.fsmonitor=false"
        command = (
            f"{git} add -A . && {git} diff --cached --binary --no-color --no-ext-diff "
            f"--no-textconv --no-renames {start} > {_PATCH_FILE} "
            f"&& wc -c < {_PATCH_FILE} && head -c 65536 {_PATCH_FILE}"
        )
        result = await sandbox.exec(command, timeout_s=_COLLECT_TIMEOUT_S, max_output_bytes=1 << 20)
        if result.exit_code != 0:
            folder = self.source.git_folder(instance)
            ended = result.exit_code is None and not result.timed_out  # killed or out of memory
            if folder is None or ended:
                return Submission("")
            # Permissions first: what the agent cannot enter, rm and tar cannot either.
            mend = "chmod -R u+rwX . ; rm -rf .git"
            await sandbox.exec(mend, timeout_s=_COLLECT_TIMEOUT_S)
            try:
                await sandbox.put({"@git.tar": folder})
            except OSError:
                return Submission("")
            except InfrastructureError as error:
                if error.kind != "disk":
                    raise
                return Submission("")  # the agent itself has filled its disk
            result = await sandbox.exec(
                command, timeout_s=_COLLECT_TIMEOUT_S, max_output_bytes=1 << 20
            )
            if result.exit_code != 0:
                return Submission("")
        size, _, patch = result.output.partition("\n")
        if not size.strip().isdigit():
            return Submission("")
        if int(size) > MAX_PATCH_BYTES:
            return Submission("")
        if int(size) > 65536 or "\ufffd" in patch:
            try:
                patch = (await sandbox.get(_PATCH_FILE)).decode("utf-8", "surrogateescape")
            except OSError:
                return Submission("")
        steering = steering_in(patch, verify.gold_files(instance))
        return Submission(drop_files(patch, steering), left_out=tuple(steering))

    async def verify(
        self, task: Task, submission: Submission, provider: SandboxProvider
    ) -> Verdict:
        """1.0 where all FAIL_TO_PASS and PASS_TO_PASS tests pass on the agent's diff, else 0.0."""
        return await verify.verify(
            self.source,
            self.instance(task),
            submission.patch,
            provider,
            left_out=submission.left_out,
            timeout_s=self.config.verify_timeout_s,
        )

    def oracle_commands(self, task: Task) -> Sequence[str]:
        """Apply the gold patch from a here-document: nothing secret has to lie in the sandbox."""
        patch = self.instance(task).patch.rstrip("\n")
        return [f"git apply --whitespace=nowarn - <<'EOF_GOLD_PATCH'\n{patch}\nEOF_GOLD_PATCH"]
