"""Whether a policy can read its tasks at all: a first message that leaves no room ends at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from harness.config import RolloutConfig
from harness.protocols import Environment, UsageError


class Opening(Protocol):
    """What is needed of a policy's chat template."""

    def first(self, message: str) -> list[int]: ...


def check_prompts(
    environment: Environment,
    splits: Iterable[str],
    chat: Opening,
    limits: RolloutConfig,
    say: Callable[[str], None],
) -> None:
    """Say in one line per split how many tasks leave the policy no turn (they score 0 at
    `context_limit`); raises UsageError where that is all of a split's."""
    for split in splits:
        tasks = environment.tasks(split)
        tokens = {t.task_id: len(chat.first(environment.first_message(t))) for t in tasks}
        room = limits.max_context_tokens - limits.max_new_tokens
        over = {name: count for name, count in tokens.items() if count > room}
        if not over:
            continue
        name = min(over, key=lambda task: over[task])
        where = f"{environment.dataset}/{split}"
        line = (
            f"rollout.max_context_tokens={limits.max_context_tokens}: leaves no turn in "
            f"{len(over)} of the {len(tokens)} tasks of {where}; the shortest "
            f"of their first messages, of {name}, has {over[name]} tokens"
        )
        if len(over) == len(tokens):
            raise UsageError(f"{line}; raise it, or take a shorter prompt (env.agent_prompt=short)")
        say(line)
