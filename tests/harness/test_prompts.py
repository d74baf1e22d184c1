"""A first message that leaves the policy no turn is said before anything is spent on it."""

from __future__ import annotations

import pytest

from environments.swebench.environment import SweBench
from harness.config import RolloutConfig
from harness.policy.load import resolve
from harness.policy.tokenizer import ChatTokens
from harness.prompts import check_prompts
from harness.protocols import UsageError


@pytest.fixture(scope="module")
def chat() -> ChatTokens:
    return ChatTokens(resolve("tiny"))


def said(chat: ChatTokens, max_context_tokens: int) -> list[str]:
    lines: list[str] = []
    limits = RolloutConfig(max_context_tokens=max_context_tokens, max_new_tokens=8)
    check_prompts(SweBench(), ["eval"], chat, limits, lines.append)
    return lines


def test_the_bundled_tasks_fit_and_nothing_is_said(chat: ChatTokens) -> None:
    assert said(chat, RolloutConfig().max_context_tokens) == []


def test_those_that_do_not_fit_are_counted(chat: ChatTokens) -> None:
    environment = SweBench()
    tasks = environment.tasks("eval")
    sizes = sorted(len(chat.first(environment.first_message(t))) for t in tasks)
    middle = sizes[len(sizes) // 2]
    (line,) = said(chat, middle + 8)
    over = sum(size > middle for size in sizes)
    assert 0 < over < len(sizes)
    assert f"leaves no turn in {over} of the {len(sizes)} tasks of mini/eval" in line


def test_a_context_that_takes_none_is_refused(chat: ChatTokens) -> None:
    with pytest.raises(UsageError, match=r"rollout.max_context_tokens=16: leaves no turn in 96 of"):
        said(chat, 16)
