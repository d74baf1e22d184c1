"""What a trajectory is charged for: the turns of a planned life, one for each turn that the policy
really takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from environments.simulated.workload import DrawnWorkload, Limits, Plan
from environments.simulated.workload_config import LogNormalConfig, WorkloadConfig
from harness.agents import Agent
from harness.protocols import Task, Trajectory

_ENDLESS = 1 << 40  # tokens: it is the real ones that are limited


@dataclass(frozen=True)
class LivedTask(Task):
    """A task as one attempt meets it: the `real` one, and what its turns, its start and its
    verification cost."""

    real: Task | None = None
    plan: Plan | None = None


def per_turn(workload: WorkloadConfig, max_turns: int) -> DrawnWorkload:
    """The workload's turns, as many as a trajectory can take. How many it takes, and what comes of
    it, is the policy's: of the workload these are left out."""
    turns = LogNormalConfig(median=float(max_turns + 1))  # the last of a plan has no tool call
    endless = replace(
        workload, turns=turns, difficulties={}, reward_icc=0.0, failed_turns_factor=1.0,
        growth_per_group=0.0,
    )  # fmt: skip
    endless.check()
    return DrawnWorkload(endless, Limits(max_turns + 1, _ENDLESS, 1 << 60))


@dataclass(slots=True)
class Length:
    """Of one trajectory: tokens that it is charged for, and those that it has."""

    charged: int = 0
    real: int = 0


class Lengths(dict[str, Length]):
    """By trajectory id; what an agent writes, engine and learner read."""

    def of(self, trajectory_id: str) -> Length:
        return self.setdefault(trajectory_id, Length())


class ChargedAgent:
    """The policy's agent, whose turns are charged as its life has planned them."""

    def __init__(
        self,
        policy: Agent,
        plan: Plan,
        lengths: Lengths,
        expect: Callable[[str, int, int], None],
    ) -> None:
        """`expect` tells the engine of the next request of a session: so many tokens of context,
        and so many to make."""
        self._policy, self._lengths, self._expect = policy, lengths, expect
        self._prompt, self._turns = plan.prompt_tokens, iter(plan.turns)

    async def act(self, trajectory: Trajectory, message: str) -> str | None:
        turn = next(self._turns)
        length = self._lengths.of(trajectory.trajectory_id)
        context = length.charged + self._prompt
        before = len(trajectory.tokens_T)
        self._expect(trajectory.trajectory_id, context, turn.action_tokens)
        text = await self._policy.act(trajectory, message)
        if len(trajectory.tokens_T) > before:
            length.charged = context + turn.action_tokens
            length.real = len(trajectory.tokens_T)
        self._prompt = turn.observation_tokens
        return text

    async def close(self, trajectory: Trajectory) -> None:
        await self._policy.close(trajectory)


def lived(task: Any) -> tuple[Task, Plan]:
    """The real task of a LivedTask, and its plan."""
    assert isinstance(task, LivedTask) and task.real is not None and task.plan is not None
    return task.real, task.plan
