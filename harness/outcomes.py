"""What went wrong with a trajectory, in one word: the taxonomy of failures.

Infrastructure's failures (environments.protocols.InfrastructureKind) lose a trajectory, which is
tried again; they are never a reward. The agent's own (AGENT_KINDS) are its reward of 0. What an
agent tried on its verifier is counted apart, whatever its reward.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from harness.protocols import Trajectory, Verdict

AGENT_KINDS = ("agent_timeout", "agent_out_of_memory")


def failure(trajectory: Trajectory) -> str | None:
    """The kind of the failure that decided a trajectory; None where the work itself did."""
    if trajectory.infrastructure_error is not None:
        return trajectory.infrastructure_error
    if trajectory.reward:
        return None
    if trajectory.end == "time_limit":
        return "agent_timeout"
    said = trajectory.report.get("failure")
    if said in AGENT_KINDS:
        return said
    if any(turn.out_of_memory for turn in trajectory.turns):
        return "agent_out_of_memory"
    return None


class Outcomes:
    """Counts of the agents' failures and of what was tried on verifiers, over a run."""

    def __init__(self) -> None:
        self.agent_failures: Counter[str] = Counter()
        self.integrity: Counter[str] = Counter()

    def add(self, trajectory: Trajectory) -> None:
        kind = failure(trajectory)
        if kind in AGENT_KINDS:
            self.agent_failures[kind] += 1
        self.integrity.update(trajectory.report.get("integrity", ()))

    def remove(self, trajectory: Trajectory) -> None:
        """As if it had not been added: it will be once more."""
        kind = failure(trajectory)
        if kind in AGENT_KINDS:
            self.agent_failures[kind] -= 1
        self.integrity.subtract(trajectory.report.get("integrity", ()))

    def state(self) -> dict[str, dict[str, int]]:
        """For a checkpoint."""
        return {
            "agent_failures": dict(self.agent_failures),
            "integrity": dict(self.integrity),
        }

    @classmethod
    def of(cls, state: Mapping[str, Mapping[str, int]]) -> Outcomes:
        made = cls()
        made.agent_failures.update(state["agent_failures"])
        made.integrity.update(state["integrity"])
        return made


def shaped(trajectory: Trajectory, verdict: Verdict, penalty: float) -> Verdict:
    """The verdict less a penalty, its own reward in the report. Raises ValueError where that is no
    number: a defect of the policy, never an infrastructure failure."""
    if not math.isfinite(penalty):
        raise ValueError(f"{trajectory.trajectory_id}: a penalty of {penalty} on the reward")
    parts = {"verdict_reward": verdict.reward, "kl_penalty": penalty}
    return Verdict(verdict.reward - penalty, {**verdict.report, **parts})
