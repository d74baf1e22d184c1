"""Settings of env=terminal_bench."""

from __future__ import annotations

from dataclasses import dataclass, field

from environments.protocols import UsageError

# Keys of a task.toml that a run may do without, where this project cannot honour them.
IGNORABLE = (
    *("artifacts", "environment.skills_dir", "environment.mcp_servers", "environment.gpus"),
    *("environment.network_mode", "agent.network_mode", "verifier.network_mode"),
)


def way_out(key: str) -> str:
    """The end of a line that refuses a task for a key."""
    return f"; to run it without, add {key} to env.ignore" if key in IGNORABLE else ""


@dataclass
class TerminalBenchConfig:
    """`dataset` is mini, or a folder: of task folders (split eval), or of train/ and eval/.

    `network` is the most that a task gets of what it asks for: `none`, the hosts that it names
    (`allowed`), or all that Docker's bridge leads to (`public`). `ignore` names keys of task.toml
    that are left out where they cannot be honoured. `agent_processes` is kill, or keep for data
    sets whose tests look at what the agent left running. Observations are bounded as in
    env=swebench; 0 takes the prompt's own bounds.
    """

    name: str = "terminal_bench"
    dataset: str = "mini"
    split: str = "train"
    eval_split: str = "eval"
    agent_prompt: str = "auto"
    network: str = "allowed"
    ignore: list[str] = field(default_factory=list)
    agent_processes: str = "kill"
    command_timeout_s: float = 20.0
    pids: int = 256
    observation_lines: int = 0
    observation_characters: int = 0

    def check(self) -> None:
        """Raise UsageError for an impossible value."""
        choices = {
            "agent_prompt": ("auto", "short", "full"),
            "network": ("none", "allowed", "public"),
            "agent_processes": ("kill", "keep"),
        }
        for key, known in choices.items():
            if getattr(self, key) not in known:
                raise UsageError(f"env.{key}={getattr(self, key)!r}: use {' or '.join(known)}")
        for key in self.ignore:
            if key not in IGNORABLE:
                raise UsageError(f"env.ignore={key}: use one of {', '.join(IGNORABLE)}")
        if not self.command_timeout_s > 0:
            raise UsageError(
                f"env.command_timeout_s={self.command_timeout_s} must be above 0 seconds"
            )
        for key, least in (("pids", 1), ("observation_lines", 0), ("observation_characters", 0)):
            if getattr(self, key) < least:
                raise UsageError(f"env.{key}={getattr(self, key)} must be {least} or more")
