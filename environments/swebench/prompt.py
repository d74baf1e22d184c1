"""What an agent reads first, what counts as its action, and how command output is shortened."""

from __future__ import annotations

import re
from dataclasses import dataclass

from environments.protocols import ExecResult
from environments.swebench.instance import Instance

SUBMIT = "submit"
_FENCE = re.compile(r"```(?:bash|sh)[ \t]*\n(.*?)(?:\n[ \t]*)?```", re.DOTALL)

FULL_PROMPT = """\
You are fixing a bug in the Python repository {repo}, checked out in {workdir}.

Issue:
{issue}

Work in steps. Answer each time with one bash command in a fenced block:
```bash
grep -rn "def name" .
```
You then read its output. Each command runs in a new shell in {workdir}. There is no network.
Change the source, not the tests. When the bug is fixed, answer with:
```bash
submit
```
"""


@dataclass(frozen=True)
class ObservationRule:
    """At most `lines` lines and `characters` characters are kept from the head of an output."""

    lines: int
    characters: int

    def apply(self, result: ExecResult) -> str:
        """The output, or "ok" / "exit N" where there is none; "..." marks what was cut off.

        A timeout is said on a line of its own, after what the command printed before it.
        """
        text = result.output.rstrip("\n")
        if result.timed_out:
            text += ("\n" if text else "") + f"timed out after {result.duration_s:.0f} s"
        elif not text:
            return "ok" if result.exit_code in (0, None) else f"exit {result.exit_code}"
        lines = text.split("\n")
        cut = len(lines) > self.lines
        text = "\n".join(lines[: self.lines])
        if len(text) > self.characters:
            text, cut = text[: self.characters], True
        return text + "\n..." if cut else text


SHORT_RULE = ObservationRule(32, 900)
FULL_RULE = ObservationRule(400, 16000)


def short_prompt(instance: Instance) -> str:
    """The issue and the paths of the source files: all that a very small policy can use."""
    sources = [p for p in instance.files or {} if p.endswith(".py") and not p.startswith("tests/")]
    sources = [p for p in sources if not p.endswith("__init__.py")]
    return f"{instance.problem_statement}\nFiles: {' '.join(sorted(sources))}"


def full_prompt(instance: Instance, workdir: str) -> str:
    return FULL_PROMPT.format(
        repo=instance.repo, workdir=workdir, issue=instance.problem_statement.strip()
    )


def parse_action(text: str) -> str | None:
    """The first ```bash block if there is one, else the whole text; None for "submit".

    An empty answer is the command `true`, so that it costs a turn and nothing else.
    """
    fence = _FENCE.search(text)
    command = (fence.group(1) if fence else text).replace("\0", "").strip()
    if command == SUBMIT:
        return None
    return command or "true"
