"""Who acts in a rollout: the policy, or a script that validates an environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from harness.config import RolloutConfig
from harness.history import History, take
from harness.lengths import mask_of
from harness.protocols import Engine, Environment, Generation, Task, Trajectory, VersionSpan


class Chat(Protocol):
    """A policy's chat template in tokens (harness.policy.tokenizer.ChatTokens)."""

    stop_tokens: tuple[int, ...]

    def first(self, message: str) -> list[int]: ...
    def observation(self, text: str) -> list[int]: ...
    def decode_action(self, tokens_T: Sequence[int]) -> str: ...


class Agent(Protocol):
    """Acts for one trajectory."""

    async def act(self, trajectory: Trajectory, message: str) -> str | None:
        """The assistant's text after reading `message`; None when a limit ended the trajectory,
        whose `end` then says which."""
        ...

    async def close(self, trajectory: Trajectory) -> None: ...


class PolicyAgent:
    """The language model. Tokens go from the engine into the trajectory as they are: nothing is
    ever decoded and encoded again."""

    def __init__(
        self, engine: Engine, chat: Chat, limits: RolloutConfig, temperature: float
    ) -> None:
        self._engine = engine
        self._chat = chat
        self._limits = limits
        self._temperature = temperature
        self._history = History(limits.history_turns)

    async def act(self, trajectory: Trajectory, message: str) -> str | None:
        chat = self._chat
        first = not trajectory.tokens_T
        heard = chat.first(message) if first else chat.observation(message)
        prompt = self._history.prompt(trajectory, heard)
        if self._limits.max_context_tokens - len(prompt) < self._limits.max_new_tokens:
            trajectory.end = "context_limit"
            return None
        new = take(trajectory, prompt)
        _extend(trajectory, new, [0.0] * len(new), generated=False)
        start = len(trajectory.tokens_T)
        completion = await self._engine.generate(
            Generation(
                session=trajectory.trajectory_id,
                prompt_T=prompt,
                max_new_tokens=self._limits.max_new_tokens,
                temperature=self._temperature,
                seed=trajectory.seed,
                stop_tokens=chat.stop_tokens,
            )
        )
        _extend(trajectory, completion.tokens_T, completion.logprobs_T, generated=True)
        trajectory.version_spans += [
            VersionSpan(s.version, start + s.start, start + s.end) for s in completion.version_spans
        ]
        if completion.finish == "length":
            trajectory.end = "token_limit"
            return None
        return chat.decode_action(completion.tokens_T)

    async def close(self, trajectory: Trajectory) -> None:
        self._history.forget(trajectory)
        await self._engine.release(trajectory.trajectory_id)


class ScriptedAgent:
    """Plays given commands, then submits: oracle (the gold solution) and nop (no command)."""

    def __init__(self, commands: Sequence[str]) -> None:
        self._commands: Iterator[str] = iter(commands)

    async def act(self, trajectory: Trajectory, message: str) -> str | None:
        return next(self._commands, "submit")

    async def close(self, trajectory: Trajectory) -> None:
        """Nothing is held."""


def scripted(name: str, environment: Environment, task: Task) -> ScriptedAgent:
    """agent=oracle or agent=nop for one task."""
    return ScriptedAgent(environment.oracle_commands(task) if name == "oracle" else ())


def _extend(
    trajectory: Trajectory, tokens: Sequence[int], logprobs: Sequence[float], generated: bool
) -> None:
    trajectory.tokens_T += tokens
    trajectory.action_mask_T += [int(generated)] * len(tokens)
    trajectory.behaviour_logprobs_T += logprobs


def action_start(trajectory: Trajectory) -> int:
    """Where the last action begins: the run of generated tokens at the end (none if scripted)."""
    if (counted := mask_of(trajectory)) is not None:
        return counted.last_start
    start = len(trajectory.action_mask_T)
    while start and trajectory.action_mask_T[start - 1]:
        start -= 1
    return start
