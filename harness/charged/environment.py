"""A real environment in virtual time: its tasks, words and verifier, at the workload's times."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields

from environments.protocols import (
    Environment,
    ExecResult,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    Submission,
    Task,
    Verdict,
)
from environments.simulated import draws
from environments.simulated.workload import Workload
from harness.charged.lives import LivedTask, lived
from harness.charged.sandboxes import ChargedProvider, ChargedSandbox, ChargedSpec


@dataclass(frozen=True)
class Collecting(Submission):
    """What the agent leaves, which is still being collected: it is known once it is judged."""

    job: Future[Submission] | None = None


class ChargedEnvironment:
    """The Environment protocol over a real one. `meet` gives each attempt its own task, whose times
    are a function of (run seed, task, group, index, attempt): every schedule meets the same."""

    def __init__(
        self, real: Environment, workload: Workload, seed: int, facts: Mapping[str, str]
    ) -> None:
        """`facts` are what the workload was made of, for the manifest."""
        self.real = real
        self.name, self.dataset = real.name, real.dataset
        self.command_timeout_s = real.command_timeout_s
        self._workload, self._seed, self._facts = workload, seed, facts

    def warm_up(self) -> None:
        self.real.warm_up()

    def data_hashes(self) -> Mapping[str, str]:
        hashes = {k: hashlib.sha256(v.encode()).hexdigest() for k, v in self._facts.items()}
        return {**self.real.data_hashes(), **hashes}

    def tasks(self, split: str) -> Sequence[Task]:
        return self.real.tasks(split)

    def meet(self, task: Task, group: int, index: int, attempt: int) -> Task:
        """The task as this attempt meets it."""
        name = hashlib.blake2b(task.task_id.encode(), digest_size=8).digest()
        seed = draws.key(self._seed, int.from_bytes(name, "big"))
        plan = self._workload.plan(seed, group, index, attempt)
        given = {part.name: getattr(task, part.name) for part in fields(task)}
        return LivedTask(**given, real=task, plan=plan)

    def first_message(self, task: Task) -> str:
        return self.real.first_message(_real(task))

    def sandbox_spec(self, task: Task) -> SandboxSpec:
        """Of a task that an attempt has met, with what it is charged for; else the real one."""
        if not isinstance(task, LivedTask):
            return self.real.sandbox_spec(task)
        real, plan = lived(task)
        spec = self.real.sandbox_spec(real)

        async def prepare(sandbox: Sandbox) -> None:
            await self.real.prepare(real, sandbox)

        return ChargedSpec(image=spec.image, real=spec, plan=plan, prepare=prepare)

    async def prepare(self, task: Task, sandbox: Sandbox) -> None:
        """Done in the sandbox's start, whose time it is in."""

    def action(self, text: str) -> str | None:
        return self.real.action(text)

    def observation(self, result: ExecResult) -> str:
        return self.real.observation(result)

    async def collect(self, task: Task, sandbox: Sandbox) -> Submission:
        """Begins; its time is in the verification's."""
        assert isinstance(sandbox, ChargedSandbox)
        real = _real(task)
        return Collecting("", job=sandbox.then(lambda inside: self.real.collect(real, inside)))

    async def verify(
        self, task: Task, submission: Submission, provider: SandboxProvider
    ) -> Verdict:
        assert isinstance(provider, ChargedProvider) and isinstance(submission, Collecting)
        real, plan = lived(task)
        work = self._judge(real, submission, provider)
        return await provider.judged(plan.verify_s, lambda: provider.workshop.begin(work))

    async def _judge(
        self, task: Task, collecting: Collecting, provider: ChargedProvider
    ) -> Verdict:
        assert collecting.job is not None
        submission = await asyncio.wrap_future(collecting.job)
        return await self.real.verify(task, submission, provider.real)

    def oracle_commands(self, task: Task) -> Sequence[str]:
        return self.real.oracle_commands(_real(task))


def _real(task: Task) -> Task:
    return lived(task)[0] if isinstance(task, LivedTask) else task
