"""Settings of a workload: how long agents' lives are, what their commands cost, how they end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from environments.protocols import UsageError


@dataclass
class LogNormalConfig:
    """exp(ln median + sigma z), z standard normal: its mean is median x exp(sigma^2 / 2). `icc` is
    the share of z's variance that is the task's: all its trajectories, and all their turns, have
    that part of z in common."""

    median: float = 1.0
    sigma: float = 0.0
    icc: float = 0.0


@dataclass
class DifficultyConfig:
    """A class of tasks: its share of all, its mean success probability, and what its trajectories'
    turns are multiplied by."""

    share: float = 1.0
    success: float = 0.5
    turns_factor: float = 1.0


@dataclass
class WorkloadConfig:
    """`name` none is no workload; trace=FILE replays the lives of a trajectories.jsonl instead of
    drawing them. Tokens are counts, times seconds; a prompt is its task's alone. `sources` says of
    every number where it is from: a document, 'measured ...', or 'assumed'."""

    name: str = "none"
    trace: str | None = None
    prompt_tokens: LogNormalConfig = field(default_factory=LogNormalConfig)
    turns: LogNormalConfig = field(default_factory=LogNormalConfig)
    action_tokens: LogNormalConfig = field(default_factory=LogNormalConfig)
    observation_tokens: LogNormalConfig = field(default_factory=LogNormalConfig)
    tool_s: LogNormalConfig = field(default_factory=LogNormalConfig)
    start_s: LogNormalConfig = field(default_factory=LogNormalConfig)
    verify_s: LogNormalConfig = field(default_factory=LogNormalConfig)
    difficulties: dict[str, DifficultyConfig] = field(default_factory=dict)
    # Of the rewards inside a group: the success probabilities of a class's tasks are Beta with this
    # intraclass correlation around the class's mean.
    reward_icc: float = 0.0
    failed_turns_factor: float = 1.0  # of a life that fails
    # Actions of rollout.max_new_tokens or more end a life (end), or are cut and it goes on (cut).
    long_actions: str = "end"
    growth_per_group: float = 0.0  # of the logarithm of the turns: a policy that learns to go on
    sources: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise UsageError for an impossible value."""
        for key in ("prompt_tokens", "turns", "action_tokens", "observation_tokens", "tool_s",
                    "start_s", "verify_s"):  # fmt: skip
            draw = getattr(self, key)
            if draw.median < 0 or not math.isfinite(draw.median):
                raise UsageError(f"workload.{key}.median={draw.median}: must be 0 or more")
            if not 0 <= draw.sigma <= 10:
                raise UsageError(f"workload.{key}.sigma={draw.sigma}: must be from 0 to 10")
            if not 0 <= draw.icc <= 1:
                raise UsageError(f"workload.{key}.icc={draw.icc}: must be from 0 to 1")
        if not 0 <= self.reward_icc <= 1:
            raise UsageError(f"workload.reward_icc={self.reward_icc}: must be from 0 to 1")
        if not self.failed_turns_factor > 0:
            raise UsageError(
                f"workload.failed_turns_factor={self.failed_turns_factor}: must be above 0"
            )
        if self.long_actions not in ("end", "cut"):
            raise UsageError(f"workload.long_actions={self.long_actions}: must be end or cut")
        for name, difficulty in self.difficulties.items():
            key = f"workload.difficulties.{name}"
            if difficulty.share < 0 or not difficulty.turns_factor > 0:
                raise UsageError(f"{key}: share must be 0 or more and turns_factor above 0")
            if not 0 <= difficulty.success <= 1:
                raise UsageError(f"{key}.success={difficulty.success}: must be from 0 to 1")
        if self.difficulties and not sum(d.share for d in self.difficulties.values()) > 0:
            raise UsageError("workload.difficulties: one share at least must be above 0")
