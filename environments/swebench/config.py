"""Settings of env=swebench."""

from __future__ import annotations

from dataclasses import dataclass

from environments.protocols import UsageError


@dataclass
class SweBenchConfig:
    """`dataset` is mini, pypi, verified, a Hugging Face name (owner/name), a .json, .jsonl or
    .parquet file, the folder of a task repository of swebench 5, or a dotted path; `data_dir`
    overrides where its data lies (for a Hugging Face name: the cache folder).

    What follows `data_dir` is for data sets whose repositories lie in images: `images` is a JSON
    file that maps instances to other images than the official ones, `registry` (host:port) where
    images are pulled from instead, `user` the owner of /testbed in them (0 in published ones),
    `memory_mb` and `cpus` the limits of a sandbox (0: 4096 MB, 1 core).

    `train_on_evaluation` lets a data set without a training split be trained on all the same: four
    fifths of its rows become `train`, the rest `eval`. What such a run says of that benchmark is
    worth nothing, and its summary says so.

    `observation_lines` and `observation_characters` bound what the agent reads after a command:
    the head is kept, and a line "..." says that something is missing. 0 takes the prompt's own
    bounds: 32 lines and 900 characters for the short prompt, 400 and 16000 for the full one.
    """

    name: str = "swebench"
    dataset: str = "mini"
    split: str = "train"
    eval_split: str = "eval"
    train_on_evaluation: bool = False
    data_dir: str | None = None
    images: str | None = None
    registry: str | None = None
    user: str = "0"
    memory_mb: int = 0
    cpus: float = 0.0
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
        if not self.user.isdigit():
            raise UsageError(f"env.user={self.user!r} must be a numeric user id, such as 0 (root)")
        for key in ("command_timeout_s", "verify_timeout_s"):
            if not getattr(self, key) > 0:
                raise UsageError(f"env.{key}={getattr(self, key)} must be above 0 seconds")
        for key in ("observation_lines", "observation_characters", "memory_mb", "cpus"):
            if getattr(self, key) < 0:
                raise UsageError(f"env.{key}={getattr(self, key)} must be 0 (default) or more")
