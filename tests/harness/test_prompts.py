"""Tasks that cannot be trained on are said before anything is spent on them: first messages that
leave no turn, and tasks that are held out under another split's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from environments.swebench.config import SweBenchConfig
from environments.swebench.environment import SweBench
from environments.swebench.mini.dataset import MiniSource
from harness.config import RolloutConfig
from harness.evaluation import check_held_out
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


def test_a_task_is_not_trained_on_and_held_out_at_once(tmp_path: Path) -> None:
    records = [instance.record() for instance in MiniSource().instances("eval")[:10]]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(r | {"split": "test"}) + "\n" for r in records))
    config = SweBenchConfig(dataset=str(path), train_on_evaluation=True)
    environment = SweBench(config)
    assert check_held_out(environment, "train", "eval", config)
    with pytest.raises(UsageError, match=r"env.split=test: 2 of its tasks, .* env.eval_split=eval"):
        check_held_out(environment, "test", "eval", config)


def test_tasks_made_for_evaluation_are_trained_on_only_when_asked(tmp_path: Path) -> None:
    records = [instance.record() for instance in MiniSource().instances("eval")[:10]]
    path = tmp_path / "own.jsonl"
    splits = ["dev"] * 5 + ["test"] * 5
    rows = [r | {"split": s} for r, s in zip(records, splits, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = SweBenchConfig(dataset=str(path))
    environment = SweBench(config)
    assert not check_held_out(environment, "dev", "test", config)
    with pytest.raises(UsageError, match=r"^env.split=test: .* for evaluation .*split test.*") as e:
        check_held_out(environment, "test", "dev", config)
    assert "env.train_on_evaluation=true" in str(e.value)
    assert not check_held_out(SweBench(), "train", "eval", SweBenchConfig())
    with pytest.raises(UsageError, match=r"env.split=eval: mini made these tasks for evaluation"):
        check_held_out(SweBench(), "eval", "train", SweBenchConfig())
