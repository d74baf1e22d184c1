"""Scripted experts for mini: how the warm start's demonstrations are made.

    python -m environments.swebench.mini.experts out=FILE [count=6000] [seed=1] [parallel=2]

An expert knows the fix and acts as if it searched for it: it looks the function up in one of
several ways, sometimes tries a wrong edit first, sees a test fail and takes it back. Every command
runs in a sandbox prepared as for a rollout, and is read by the same observation rule. Tasks come
from the `demo` split, which no training or evaluation task shares a mutation site or a package
with. The output is JSON lines: {"task_id", "difficulty", "first_message", "turns": [[command,
observation], ...], "reward"}; the last turn is submit, which has no observation.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from environments.protocols import Sandbox, Task
from environments.swebench.config import SweBenchConfig
from environments.swebench.environment import SweBench
from environments.swebench.instance import Instance
from environments.swebench.mini.dataset import IMAGE, generate_instances

LIVES = 200  # demonstrations per sandbox: many, because starting one costs more than a command
TIMEOUT_S = 20.0
TOKEN = re.compile(r" ?(?:not in|//|[<>=!+*-]=|[A-Za-z_]\w*|\d+|[^\s])")
SLIPS = (  # what a wrong edit changes: a token and what it becomes
    ("<", ">"),
    (">", "<"),
    ("<=", "<"),
    (">=", ">"),
    ("+", "-"),
    ("-", "+"),
    ("*", "+"),
    ("==", "!="),
    ("+=", "-="),
    ("0", "1"),
    ("1", "2"),
    ("2", "3"),
    ("any", "all"),
    ("min", "max"),
)


@dataclass(frozen=True)
class Demonstration:
    """One solved task as (command, observation) turns; reward 1.0 where the fix is in place."""

    task_id: str
    difficulty: str
    first_message: str
    turns: tuple[tuple[str, str], ...]
    reward: float


@dataclass(frozen=True)
class Bug:
    """Where the bug is, read off the gold patch: one line, number `line` (from 1), of `path`."""

    path: str
    function: str
    line: int
    bad: str
    good: str

    @classmethod
    def of(cls, instance: Instance) -> Bug:
        match = re.search(r"^\+\+\+ b/(.+)$", instance.patch, re.MULTILINE)
        bad = re.search(r"^-(?!--)(.*)$", instance.patch, re.MULTILINE)
        good = re.search(r"^\+(?!\+\+)(.*)$", instance.patch, re.MULTILINE)
        start = re.search(r"^@@ -(\d+)", instance.patch, re.MULTILINE)
        if not (match and bad and good and start and instance.files):
            raise ValueError(f"{instance.instance_id}: the gold patch is not a one-line change")
        hunk = instance.patch[start.end() :].split("\n")[1:]
        line = int(start.group(1)) + next(i for i, text in enumerate(hunk) if text[:1] == "-")
        above = instance.files[match.group(1)].split("\n")[:line]
        names = [text[4:].partition("(")[0] for text in above if text.startswith("def ")]
        return cls(match.group(1), names[-1], line, bad.group(1), good.group(1))


def _escape(pattern: str) -> str:
    """`pattern` as a basic regular expression; a leading * is literal already."""
    text = re.sub(r"([\[\].])", r"\\\1", pattern)
    return text[:1] + text[1:].replace("*", "\\*")


def substitution(line: int, before: str, after: str, path: str) -> str:
    """The sed command that turns line number `line` from `before` into `after`: the few tokens
    that differ, widened to the left until their first occurrence in the line is the right one."""
    text = before.strip()
    old, new = TOKEN.findall(text), TOKEN.findall(after.strip())
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    end_old, end_new = len(old) - tail, len(new) - tail
    if head in (end_old, end_new):
        head = max(0, head - 1)
    while head > 0 and text.find("".join(old[head:end_old])) != len("".join(old[:head])):
        head -= 1
    pattern, replacement = "".join(old[head:end_old]), "".join(new[head:end_new])
    return f"sed -i '{line}s|{_escape(pattern)}|{replacement}|' {path}"


def wrong_line(bug: Bug, rng: random.Random) -> str | None:
    """The bug's line with a wrong change of one token, or None where no slip fits."""
    tokens = TOKEN.findall(bug.bad.strip())
    places = [(i, b) for i, token in enumerate(tokens) for a, b in SLIPS if token.strip() == a]
    if not places:
        return None
    index, slip = rng.choice(places)
    tokens[index] = " " * tokens[index].startswith(" ") + slip
    indent = bug.bad[: len(bug.bad) - len(bug.bad.lstrip())]
    line = indent + "".join(tokens)
    return None if line == bug.good else line


def shows_failure(instance: Instance) -> bool:
    """True where a FAIL_TO_PASS test is already in the repository."""
    tests = "".join((instance.files or {}).values())
    return any(f"def {name.partition('::')[2]}(" in tests for name in instance.FAIL_TO_PASS)


def plan(instance: Instance, rng: random.Random) -> list[str]:
    """An expert's commands, without the submit."""
    bug = Bug.of(instance)
    package = bug.path.partition("/")[0]
    paths = [p for p in instance.files or {} if p.startswith(package) and "__init__" not in p]
    commands = ["runtests"] if rng.random() < 0.2 else []
    if rng.random() < 0.7:
        commands.append(f'grep -rn "def {bug.function}" {package}')
        look = f'grep -nA6 "def {bug.function}" {bug.path}'
        commands.append(look if rng.random() < 0.75 else f"cat -n {bug.path}")
    else:
        first = rng.choice(sorted(paths))
        commands += [f"cat -n {path}" for path in dict.fromkeys((first, bug.path))]
    if rng.random() < 0.3 and shows_failure(instance):
        slip = wrong_line(bug, rng)
        if slip is not None:
            commands.append(substitution(bug.line, bug.bad, slip, bug.path))
            commands += ["runtests", f"git checkout {bug.path}"]
    commands.append(substitution(bug.line, bug.bad, bug.good, bug.path))
    if rng.random() < 0.85:
        commands.append("runtests")
    return commands


async def demonstrate(
    task: Task, sandbox: Sandbox, environment: SweBench, rng: random.Random
) -> Demonstration:
    """Let an expert solve `task` in a prepared sandbox. Reward 1.0 where the file it edited equals
    the fixed one, and no wrong edit was let pass by the tests."""
    instance = environment.instance(task)
    bug = Bug.of(instance)
    turns: list[tuple[str, str]] = []
    solved = True
    edited_wrong = False
    for command in plan(instance, rng):
        result = await sandbox.exec(command, timeout_s=TIMEOUT_S)
        turns.append((command, environment.observation(result)))
        reverted = command.startswith("git checkout")
        if reverted and edited_wrong and "failed" not in turns[-2][1]:
            solved = False  # nobody would take back an edit that the tests like
        edited_wrong = command == "runtests" and len(turns) > 1 and turns[-2][0].startswith("sed")
    turns.append(("submit", ""))
    content = (await sandbox.get(bug.path)).decode()
    lines = (instance.files or {})[bug.path].split("\n")
    lines[bug.line - 1] = bug.good
    solved = solved and content == "\n".join(lines)
    return Demonstration(
        task.task_id,
        task.difficulty,
        environment.first_message(task),
        tuple(turns),
        float(solved),
    )


def _demo_tasks(environment: SweBench, seed: int) -> Iterator[Task]:
    """Tasks for experts; slow ones differ from others only in the time they cost."""
    for _, instance in generate_instances("demo", seed):
        if instance.difficulty != "slow":
            yield environment.task(instance)


async def build(out: TextIO, *, count: int, seed: int, parallel: int) -> tuple[int, int]:
    """Write `count` solved demonstrations to `out`, in the order of their tasks, with `parallel`
    sandboxes in use -> (written, dropped). Same seed, same demonstrations."""
    from environments.sandbox.select import open_provider

    environment = SweBench(SweBenchConfig())
    tasks = enumerate(_demo_tasks(environment, seed))
    waiting: dict[int, Demonstration] = {}
    written = dropped = following = 0
    provider = await open_provider(
        "bubblewrap", image=IMAGE, run_id=f"experts-{seed}", max_parallel=parallel
    )

    def flush() -> None:
        nonlocal written, dropped, following
        while following in waiting and written < count:
            demonstration = waiting.pop(following)
            following += 1
            if demonstration.reward < 1.0:
                dropped += 1
                continue
            out.write(json.dumps(asdict(demonstration), separators=(",", ":")) + "\n")
            written += 1
            if written % 500 == 0:
                print(f"{written} of {count} demonstrations", file=sys.stderr)

    async def work() -> None:
        while written < count:
            sandbox = await provider.start(environment.sandbox_spec(environment.tasks("eval")[0]))
            try:
                for _ in range(LIVES):
                    if written >= count:
                        break
                    number, task = next(tasks)
                    await sandbox.exec("find . -mindepth 1 -delete", timeout_s=TIMEOUT_S)
                    await environment.prepare(task, sandbox)
                    rng = random.Random(f"expert/{seed}/{number}")
                    waiting[number] = await demonstrate(task, sandbox, environment, rng)
                    flush()
            finally:
                await sandbox.stop()

    try:
        await asyncio.gather(*(work() for _ in range(parallel)))
    finally:
        await provider.close()
    return written, dropped


def main(arguments: list[str]) -> int:
    values = {"out": "", "count": "6000", "seed": "1", "parallel": "2"}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in values:
            print(f"unknown argument {argument!r}; use {'= '.join(values)}=", file=sys.stderr)
            return 2
        values[key] = value
    if not values["out"]:
        print("out=FILE is missing: where to write the demonstrations", file=sys.stderr)
        return 2
    count, seed, parallel = (int(values[key]) for key in ("count", "seed", "parallel"))
    with Path(values["out"]).open("w", encoding="utf-8") as out:
        written, dropped = asyncio.run(build(out, count=count, seed=seed, parallel=parallel))
    print(f"{written} demonstrations written, {dropped} unsolved dropped", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
