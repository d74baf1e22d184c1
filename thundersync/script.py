"""Records written actions as a policy's own trajectories: real tasks, sandboxes and verdicts.

    python -m thundersync.script script=FILE.toml policy=FOLDER out=FILE.jsonl.gz
        [env.dataset=pypi] [KEY=VALUE ...]

A policy too small to solve a task cannot record a group with a signal. So the script says what is
done (for each trajectory: what it is, the reward that it must get, its actions), the engine reads
the prompts, decodes the written tokens and says what the policy's log-probabilities of them are,
the sandbox runs the commands and the verifier judges. Any KEY=VALUE of harness.run holds. Exits 1
where a verdict is not the script's, and writes nothing then.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import composition, entry
from harness.agents import Agent, PolicyAgent
from harness.config import Config
from harness.interrupt import run_async
from harness.parts import open_parts
from harness.protocols import Completion, Generation, Task, Trajectory, UsageError
from harness.rollout import Rollouts, derive_seed
from harness.trajectory_lines import encode
from harness.validation import validate

_KEYS = ("script", "policy", "out")


@dataclass(frozen=True)
class Written:
    """One trajectory of a script."""

    what: str
    reward: float
    actions: tuple[str, ...]


def read_script(path: Path) -> list[tuple[str, list[Written]]]:
    """(task, its group's trajectories). Raises UsageError for a file that says something else."""
    try:
        groups = tomllib.loads(path.read_text(encoding="utf-8"))["group"]
        return [
            (
                group["task"],
                [
                    Written(t["what"], float(t["reward"]), tuple(a.strip() for a in t["actions"]))
                    for t in group["trajectory"]
                ],
            )
            for group in groups
        ]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"script={path}: no script ({error}); it has [[group]] with a task and "
            "[[group.trajectory]] with what, reward and actions"
        ) from error


class WrittenActions:
    """An engine whose completions are written beforehand, in the order of a session's turns."""

    def __init__(self, engine: Any, actions: dict[str, list[list[int]]]) -> None:
        self._engine, self._actions = engine, actions

    async def generate(self, request: Generation) -> Completion:
        forced = self._actions[request.session].pop(0)
        return await self._engine.generate(
            replace(request, forced_T=forced, max_new_tokens=len(forced))
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


async def record(config: Config, script: Sequence[tuple[str, list[Written]]]) -> list[Trajectory]:
    """Play every trajectory; sandboxes and processes are ended on the way out."""
    run = f"{os.getpid()}-script"
    async with open_parts(config, run, None, say=lambda line: print(line, file=sys.stderr)) as p:
        tasks = {task.task_id: task for task in p.environment.tasks(config.env.split)}
        missing = [name for name, _ in script if name not in tasks]
        if missing:
            raise UsageError(f"script: no task {missing[0]} in env.split={config.env.split}")
        actions = {
            f"{g}-{i}": [p.chat.action(a) for a in written.actions]
            for g, (_, group) in enumerate(script)
            for i, written in enumerate(group)
        }
        engine: Any = WrittenActions(p.engine, actions)
        agent = PolicyAgent(engine, p.chat, config.rollout, 1.0)

        def act(task: Task) -> Agent:
            return agent

        rollouts = Rollouts(
            p.environment, act, p.provider, p.clock, config.rollout, p.clock.origin_s
        )
        lives = [
            rollouts.run(tasks[name], g, i, derive_seed(config.seed, g, i), lambda event: None)
            for g, (name, group) in enumerate(script)
            for i in range(len(group))
        ]
        ended = await asyncio.gather(*lives)
    lost = [t for t in ended if t is None]
    if lost:
        raise UsageError(f"{len(lost)} trajectories were lost: nothing is recorded; try again")
    return [t for t in ended if t is not None]


def script_from_command_line() -> None:
    own = [a for a in sys.argv[1:] if a.partition("=")[0] in _KEYS]
    given = entry.settings(own, _KEYS, _KEYS, (__doc__ or "").split("\n")[2].strip())
    script = read_script(Path(given["script"]))
    config = composition.compose(
        [
            "env.dataset=pypi", "rollout.max_context_tokens=2000", "rollout.retries=0",
            "policy=hf", f"policy.path={given['policy']}", "engine.slots=8",
            *(a for a in sys.argv[1:] if a not in own),
        ]
    )  # fmt: skip
    validate(config)
    trajectories = run_async(record(config, script))
    written = [w for _, group in script for w in group]
    for trajectory, said in zip(trajectories, written, strict=True):
        line = f"{trajectory.trajectory_id}: {len(trajectory.tokens_T)} tokens, {said.what}"
        print(f"{line}: reward {trajectory.reward}", file=sys.stderr)
    wrong = [
        t.trajectory_id for t, w in zip(trajectories, written, strict=True) if t.reward != w.reward
    ]
    if not wrong:
        with gzip.GzipFile(given["out"], "wb", mtime=0) as file:
            for trajectory, said in zip(trajectories, written, strict=True):
                line = encode(trajectory) | {"batch": 0, "what": said.what}
                file.write((json.dumps(line) + "\n").encode())
    entry.closing_line({"trajectories": len(trajectories), "unexpected_rewards": wrong})
    if wrong:
        raise SystemExit(1)


def main() -> int:
    return entry.guarded(script_from_command_line, __doc__)


if __name__ == "__main__":
    sys.exit(main())
