"""What would happen in a trajectory's life, drawn ahead: a pure function of its seed and place.

Tokens, turns and the outcome are a function of (task seed, group, index), as a policy's samples
are of their seed; times of the attempt as well: a retry meets another machine. What a task's
trajectories share (its difficulty, its share of every draw) is a function of the task seed alone.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

from environments.protocols import UsageError
from environments.simulated import draws
from environments.simulated.workload_config import LogNormalConfig, WorkloadConfig

Array = NDArray[Any]
BLOCK = (
    8  # trajectories of a group that are drawn at once: a numpy call costs more than its numbers
)
KEPT_BLOCKS = 256
KEPT_TASKS = 4096
# Streams of one place; their order is part of what a seed means.
_TASK, _LIFE, _TURNS, _TIMES, _TOOLS = range(5)


class PlannedTurn(NamedTuple):
    """`observation_tokens` are read after the action, before the next one; 0 after the last."""

    action_tokens: int
    observation_tokens: int
    tool_s: float


class Turns(Sequence[PlannedTurn]):
    """A life's turns in three small arrays: a hundred thousand lives in flight stay small."""

    __slots__ = ("_actions", "_observations", "_tools_s")

    def __init__(self, actions: Array, observations: Array, tools_s: Array) -> None:
        self._actions, self._observations, self._tools_s = actions, observations, tools_s

    def __len__(self) -> int:
        return len(self._actions)

    @overload
    def __getitem__(self, index: int) -> PlannedTurn: ...
    @overload
    def __getitem__(self, index: slice) -> Turns: ...
    def __getitem__(self, index: int | slice) -> PlannedTurn | Turns:
        if isinstance(index, slice):
            return Turns(self._actions[index], self._observations[index], self._tools_s[index])
        return PlannedTurn(
            int(self._actions[index]), int(self._observations[index]), float(self._tools_s[index])
        )

    def __iter__(self) -> Iterator[PlannedTurn]:
        columns = (self._actions.tolist(), self._observations.tolist(), self._tools_s.tolist())
        return map(PlannedTurn._make, zip(*columns, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Turns) and list(self) == list(other)

    @property
    def action_tokens(self) -> int:
        return int(self._actions.sum())

    @property
    def observation_tokens(self) -> int:
        return int(self._observations.sum())


@dataclass(frozen=True, slots=True)
class Plan:
    """One life: tokens are counts, times seconds. `end` is an EndReason of harness.protocols; only
    a life that ends with submit is verified, so that every other one has verify_s and reward 0."""

    prompt_tokens: int
    turns: Sequence[PlannedTurn]
    start_s: float
    verify_s: float
    reward: float
    difficulty: str
    end: str

    @property
    def tokens(self) -> int:
        """The context at its end."""
        return self.prompt_tokens + sum(t.action_tokens + t.observation_tokens for t in self.turns)


class Workload(Protocol):
    """Lives by place."""

    def plan(self, task_seed: int, group: int, index: int, attempt: int) -> Plan: ...

    def difficulty(self, task_seed: int) -> str:
        """The class of a task's lives."""
        ...


@dataclass(frozen=True)
class Limits:
    """What ends a life that does not submit; as rollout.* of a run."""

    max_turns: int
    max_new_tokens: int
    max_context_tokens: int


@dataclass(frozen=True)
class _Task:
    """What the trajectories of a task share; `z` are its parts of the standard normal draws."""

    difficulty: str
    success: float
    turns_factor: float
    z: Sequence[float]


# A place in _Task.z each; prompt_tokens are the task's alone.
_DRAWS = ("prompt_tokens", "turns", "action_tokens", "observation_tokens", "tool_s", "start_s",
          "verify_s")  # fmt: skip


class DrawnWorkload:
    """Lives from the distributions of a WorkloadConfig, cut at the run's limits."""

    def __init__(self, config: WorkloadConfig, limits: Limits) -> None:
        self._config, self._limits = config, limits
        self._blocks: OrderedDict[tuple[int, int, int, int], list[Plan]] = OrderedDict()
        self._tasks: OrderedDict[int, _Task] = OrderedDict()
        self._longest = limits.max_new_tokens - (config.long_actions == "cut")
        classes = config.difficulties
        self._names = sorted(name for name, d in classes.items() if d.share > 0)
        shares = np.array([classes[name].share for name in self._names], dtype=np.float64)
        self._edges = np.cumsum(shares) / shares.sum() if len(shares) else shares

    def plan(self, task_seed: int, group: int, index: int, attempt: int) -> Plan:
        """The life of trajectory `index` of `group`."""
        block, place = divmod(index, BLOCK)
        key = (task_seed, group, block, attempt)
        plans = self._blocks.get(key)
        if plans is None:
            plans = self._draw(*key)
            self._blocks[key] = plans
            if len(self._blocks) > KEPT_BLOCKS:
                self._blocks.popitem(last=False)
        return plans[place]

    def difficulty(self, task_seed: int) -> str:
        return self._task(task_seed).difficulty

    def _task(self, task_seed: int) -> _Task:
        task = self._tasks.get(task_seed)
        if task is None:
            task = self._tasks[task_seed] = self._draw_task(task_seed)
            if len(self._tasks) > KEPT_TASKS:
                self._tasks.popitem(last=False)
        return task

    def _draw_task(self, task_seed: int) -> _Task:
        keys = np.array([draws.key(_TASK, task_seed)], dtype=np.uint64)
        uniform = draws.uniforms(keys, 2 + len(_DRAWS))[0]
        name, success, factor = "medium", 0.5, 1.0
        if self._names:
            place = int(np.searchsorted(self._edges, uniform[0], side="right"))
            name = self._names[min(place, len(self._names) - 1)]
            difficulty = self._config.difficulties[name]
            success, factor = difficulty.success, difficulty.turns_factor
        icc = self._config.reward_icc
        if icc == 1 and 0 < success < 1:
            success = float(uniform[1] < success)
        elif icc > 0 and 0 < success < 1:  # of Bernoulli rewards under a Beta: 1 / (a + b + 1)
            weight = 1 / icc - 1
            success = float(betaincinv(weight * success, weight * (1 - success), uniform[1]))
        return _Task(name, success, factor, ndtri(uniform[2:]).tolist())

    def _value(self, name: str, task: _Task, own: Array | float) -> Any:
        """exp of the draw `name`, from the task's part and a life's (or a turn's) own."""
        draw: LogNormalConfig = getattr(self._config, name)
        z = math.sqrt(draw.icc) * task.z[_DRAWS.index(name)] + math.sqrt(1 - draw.icc) * own
        return draw.median * np.exp(draw.sigma * z)

    def _draw(self, task_seed: int, group: int, block: int, attempt: int) -> list[Plan]:
        config, limits, task = self._config, self._limits, self._task(task_seed)
        place = (task_seed, group, block)
        lives = [draws.key(_LIFE, *place, i) for i in range(BLOCK)]
        life = draws.uniforms(np.array(lives, dtype=np.uint64), 2)
        success = life[:, 0] < task.success
        turns = self._value("turns", task, ndtri(life[:, 1])) * task.turns_factor
        turns *= np.where(success, 1.0, config.failed_turns_factor)
        turns *= math.exp(config.growth_per_group * group)
        counts = np.maximum(1, np.rint(np.minimum(turns, limits.max_turns + 1))).astype(np.int64)
        width = min(int(counts.max()), limits.max_turns)

        def block_of(stream: int, *more: int) -> Array:
            keys = [draws.key(stream, *place, i, *more) for i in range(BLOCK)]
            return np.array(keys, dtype=np.uint64)

        own = draws.normals(block_of(_TURNS), 2 * width)
        actions = self._value("action_tokens", task, own[:, ::2])
        actions = np.maximum(1, np.rint(np.minimum(actions, self._longest))).astype(np.int64)
        observations = self._value("observation_tokens", task, own[:, 1::2])
        observations = np.rint(observations).astype(np.int64)
        tools_s = self._value("tool_s", task, draws.normals(block_of(_TOOLS, attempt), width))
        times = draws.normals(block_of(_TIMES, attempt), 2)
        starts_s = self._value("start_s", task, times[:, 0]).tolist()
        verify_s = self._value("verify_s", task, times[:, 1]).tolist()
        read, z = config.prompt_tokens, task.z[_DRAWS.index("prompt_tokens")]
        prompt = max(1, round(read.median * math.exp(read.sigma * z)))  # one for all of the task
        plans = []
        for i, count in enumerate(counts.tolist()):
            taken, end = _cut(prompt, count, actions[i], observations[i], limits)
            plans.append(
                _life(
                    task.difficulty, prompt, taken, end, actions[i], observations[i], tools_s[i],
                    starts_s[i], verify_s[i], float(success[i]),
                )
            )  # fmt: skip
        return plans


def _cut(
    prompt: int, count: int, actions: Array, observations: Array, limits: Limits
) -> tuple[int, str]:
    """(turns taken, why it ends): the rules of the agent loop (harness/rollout.py)."""
    taken, end = (
        (count, "submit") if count <= limits.max_turns else (limits.max_turns, "turn_limit")
    )
    long = np.flatnonzero(actions[:taken] >= limits.max_new_tokens)
    if len(long):
        taken, end = int(long[0]) + 1, "token_limit"
    # Before each turn: the context, what is about to be read, and room for an action.
    reads = prompt + np.concatenate(([0], np.cumsum(actions + observations)[: taken - 1]))
    full = np.flatnonzero(reads + limits.max_new_tokens > limits.max_context_tokens)
    if len(full):
        taken, end = int(full[0]), "context_limit"
    return taken, end


def _life(
    difficulty: str,
    prompt: int,
    taken: int,
    end: str,
    actions: Array,
    observations: Array,
    tools_s: Array,
    start_s: float,
    verify_s: float,
    reward: float,
) -> Plan:
    # Copies: a view would keep the whole block alive.
    acted = actions[:taken].astype(np.int32)
    read, tool = observations[:taken].astype(np.int32), tools_s[:taken].copy()
    if taken:
        read[-1] = 0
        if end in ("submit", "token_limit"):
            tool[-1] = 0.0
    submitted = end == "submit"
    return Plan(
        prompt_tokens=prompt,
        turns=Turns(acted, read, tool),
        start_s=start_s,
        verify_s=verify_s if submitted else 0.0,
        reward=reward if submitted else 0.0,
        difficulty=difficulty,
        end=end,
    )


def make_workload(config: WorkloadConfig, limits: Limits) -> Workload:
    """The workload that `config` names. Raises UsageError where there is none."""
    config.check()
    if config.trace is not None:
        from environments.simulated.trace import TraceWorkload

        return TraceWorkload(config.trace)
    if config.name == "none":
        raise UsageError(
            "workload=none: a simulated environment draws its lives from a workload; take "
            "workload=swebench_verified, or workload.trace=FILE, a trajectories.jsonl"
        )
    return DrawnWorkload(config, limits)
