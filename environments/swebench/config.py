"""Settings of env=swebench."""

from __future__ import annotations

from dataclasses import dataclass

from environments.protocols import UsageError


@dataclass
class SweBenchConfig:
    """`dataset` is mini, pypi or a dotted path; `data_dir` overrides where its data lies.

    `observation_lines` and `observation_characters` bound what the agent reads after a command:
    the head is kept, and a line "..." says that something is missing. 0 takes the prompt's own
    bounds: 32 lines and 900 characters for the short prompt, 400 and 16000 for the full one.
    """

    name: str = "swebench"
    dataset: str = "mini"
    split: str = "train"
    eval_split: str = "eval"
    data_dir: str | None = None
    agent_prompt: str = "auto"
    command_timeout_s: float = 20.0
    verify_timeout_s: float = 120.0
    observation_lines: int = 0
    observation_characters: int = 0

    def check(self) -> None:
        """Raise UsageError for an impossible value."""
        if self.agent_prompt not in ("auto", "short", "full"):
            raise UsageError(
                f"env.agent_prompt={self.agent_prompt!r} is unknown; use auto, short or full"
            )
        for key in ("command_timeout_s", "verify_timeout_s"):
            if not getattr(self, key) > 0:
                raise UsageError(f"env.{key}={getattr(self, key)} must be above 0 seconds")
        for key in ("observation_lines", "observation_characters"):
            if getattr(self, key) < 0:
                raise UsageError(f"env.{key}={getattr(self, key)} must be 0 (default) or more")
