"""Actions and observations: the rules an agent meets."""

from __future__ import annotations

import pytest

from environments.protocols import ExecResult, UsageError
from environments.swebench.config import SweBenchConfig
from environments.swebench.environment import SweBench
from environments.swebench.prompt import SHORT_RULE, ObservationRule, parse_action


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("ls", "ls"),
        ("  ls -la \n", "ls -la"),
        ("I look.\n```bash\nls\n```\nThen more.", "ls"),
        ("```bash\ncat > a <<'X'\none\n\ntwo\nX\n```", "cat > a <<'X'\none\n\ntwo\nX"),
        ("```sh\nls\n```\n```bash\npwd\n```", "ls"),
        ("```python\nprint(1)\n```", "```python\nprint(1)\n```"),
        ("l\0s", "ls"),
        ("", "true"),
        ("```bash\n\n```", "true"),
        ("submit", None),
        (" submit\n", None),
        ("Done.\n```bash\nsubmit\n```", None),
        ("submit now", "submit now"),
    ],
)
def test_action(text: str, command: str | None) -> None:
    assert parse_action(text) == command


def result(output: str, exit_code: int | None = 0, timed_out: bool = False) -> ExecResult:
    return ExecResult(output, exit_code, 2.0, timed_out)


def test_silence_is_ok_or_the_exit_code() -> None:
    assert SHORT_RULE.apply(result("")) == "ok"
    assert SHORT_RULE.apply(result("\n")) == "ok"
    assert SHORT_RULE.apply(result("", 1)) == "exit 1"
    assert SHORT_RULE.apply(result("no such file\n", 2)) == "no such file"


def test_a_timeout_is_said() -> None:
    assert SHORT_RULE.apply(result("", None, timed_out=True)) == "timed out after 2 s"
    said = SHORT_RULE.apply(result("half\n", None, timed_out=True))
    assert said == "half\ntimed out after 2 s"


def test_the_head_is_kept_and_the_cut_is_marked() -> None:
    lines = [f"line {n}" for n in range(40)]
    assert SHORT_RULE.apply(result("\n".join(lines[:32]))) == "\n".join(lines[:32])
    assert SHORT_RULE.apply(result("\n".join(lines))) == "\n".join([*lines[:32], "..."])
    assert SHORT_RULE.apply(result("x" * 900)) == "x" * 900
    assert SHORT_RULE.apply(result("x" * 901)) == "x" * 900 + "\n..."
    assert ObservationRule(2, 3).apply(result("ab\ncd\nef")) == "ab\n\n..."


def test_settings_choose_prompt_and_bounds() -> None:
    short = SweBench()
    task = short.tasks("eval")[0]
    issue, files = short.first_message(task).split("\n")
    assert issue == task.payload["problem_statement"]
    assert files.startswith("Files: ")
    assert len(files.split()) == 3
    full = SweBench(SweBenchConfig(agent_prompt="full", observation_lines=5))
    assert issue in full.first_message(task)
    assert "```bash\nsubmit\n```" in full.first_message(task)
    assert (full.rule.lines, full.rule.characters) == (5, 16000)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"agent_prompt": "long"}, "env.agent_prompt='long' is unknown"),
        ({"command_timeout_s": 0.0}, "env.command_timeout_s=0.0 must be above 0"),
        ({"observation_lines": -1}, "env.observation_lines=-1 must be 0"),
        ({"dataset": "maxi"}, "env.dataset='maxi' is unknown; use one of mini, pypi"),
        ({"dataset": "no.such:Thing"}, "env.dataset='no.such:Thing' cannot be loaded"),
    ],
)
def test_impossible_settings_are_usage_errors(setting: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SweBench(SweBenchConfig(**setting))


def test_an_unknown_split_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"env.split='test': data set 'mini' has train, eval"):
        SweBench().tasks("test")
