"""env=simulated: tasks without content, whose agents' lives are planned by a workload.

What a life is, is a function of its place (run seed, task, group, index, attempt): every schedule
meets the same lives, whatever happens when.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence

from environments.protocols import (
    ExecResult,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    Submission,
    Task,
    Verdict,
)
from environments.simulated import draws
from environments.simulated.config import SimulatedConfig
from environments.simulated.life import VERIFICATIONS, Life
from environments.simulated.sandbox import SimulatedProvider, SimulatedSpec
from environments.simulated.workload import Workload

SUBMIT = "submit"


class Simulated:
    """The Environment protocol. `meet` gives one attempt its own task, which carries its life."""

    name = "simulated"

    def __init__(
        self, config: SimulatedConfig, workload: Workload, seed: int, facts: Mapping[str, str]
    ) -> None:
        """`facts` are what the workload was made of, for the manifest."""
        self.dataset = config.dataset
        self.command_timeout_s = config.command_timeout_s
        self._config, self._workload, self._facts = config, workload, facts
        self._failures = {kind: p for kind, p in config.failures.items() if p}
        seeds = [draws.key(seed, number) for number in range(config.tasks)]
        self._tasks = [
            Task(f"task-{n:05d}", "train", workload.difficulty(s), {"seed": s})
            for n, s in enumerate(seeds)
        ]

    def warm_up(self) -> None:
        """Nothing is imported late."""

    def data_hashes(self) -> Mapping[str, str]:
        text = json.dumps(dict(self._facts), sort_keys=True)
        return {"workload": hashlib.sha256(text.encode()).hexdigest()}

    def tasks(self, split: str) -> Sequence[Task]:
        """All are for training: nothing is learnt that could be evaluated."""
        return self._tasks if split == self._config.split else []

    def meet(self, task: Task, group: int, index: int, attempt: int) -> Task:
        """The task as this attempt meets it."""
        place = (task.payload["seed"], group, index, attempt)
        life = Life(self._workload.plan(*place), place, self._failures)
        return dataclasses.replace(task, payload={"life": life})

    def first_message(self, task: Task) -> str:
        return ""

    def sandbox_spec(self, task: Task) -> SandboxSpec:
        return SimulatedSpec(image="simulated", life=task.payload["life"])

    async def prepare(self, task: Task, sandbox: Sandbox) -> None:
        """Its time is in the start's."""

    def action(self, text: str) -> str | None:
        return None if text == SUBMIT else text

    def observation(self, result: ExecResult) -> str:
        return ""

    async def collect(self, task: Task, sandbox: Sandbox) -> Submission:
        """Its time is in the verification's."""
        return Submission("")

    async def verify(
        self, task: Task, submission: Submission, provider: SandboxProvider
    ) -> Verdict:
        life: Life = task.payload["life"]
        assert isinstance(provider, SimulatedProvider)
        await provider.occupied(life.plan.verify_s)
        life.verifications += 1
        life.may_fail(VERIFICATIONS, life.verifications)
        return Verdict(life.plan.reward, {})

    def oracle_commands(self, task: Task) -> Sequence[str]:
        """There is no solution to replay."""
        return ()
