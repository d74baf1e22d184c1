"""Experts solve their tasks with real commands, and only solved demonstrations are written."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from environments.protocols import Sandbox
from environments.swebench.mini import experts
from environments.swebench.mini.dataset import MiniSource, generate_instances
from environments.swebench.mini.mutate import render
from environments.swebench.mini.task import split_of
from environments.swebench.mini.templates import TEMPLATES

INSTANCES = [i for _, i in itertools.islice(generate_instances("demo", 5), 40)]


def test_the_bug_is_read_off_the_gold_patch() -> None:
    for instance in INSTANCES:
        bug = experts.Bug.of(instance)
        assert instance.files is not None
        assert instance.files[bug.path].split("\n")[bug.line - 1] == bug.bad
        assert bug.bad != bug.good
        assert any(f"test_{bug.function}_" in name for name in instance.FAIL_TO_PASS)


def test_an_instance_without_files_cannot_be_demonstrated() -> None:
    with pytest.raises(ValueError, match="not a one-line change"):
        experts.Bug.of(replace(INSTANCES[0], files=None))


def test_experts_vary() -> None:
    plans = [experts.plan(i, random.Random(n)) for n, i in enumerate(INSTANCES * 5)]
    verbs = {command.split()[0] for commands in plans for command in commands}
    assert verbs == {"runtests", "grep", "cat", "sed", "git"}
    assert {len(p) for p in plans} >= {3, 4, 5, 6}
    assert max(len(p) for p in plans) <= 9  # with the submit a trajectory has ten turns at most
    reverted = [p for p in plans if any(c.startswith("git checkout") for c in p)]
    assert 0.05 < len(reverted) / len(plans) < 0.4


NAMES = {"L": "xs", "A": "n", "B": "y", "C": "hi"}
MUTATIONS = [(template, mutation) for template in TEMPLATES for mutation in template.mutations]


def test_substitutions_put_every_mutation_right(tmp_path: Path) -> None:
    """Each sed, run for real on the buggy text, gives the fixed one, and is short."""
    for template, mutation in MUTATIONS:
        good = render(template, "f", NAMES, 5)
        bad = render(template, "f", NAMES, 5, mutation)
        lines = enumerate(zip(bad.split("\n"), good.split("\n"), strict=True), 1)
        number, (before, after) = next((n, pair) for n, pair in lines if pair[0] != pair[1])
        file = tmp_path / "core.py"
        file.write_text(bad)
        command = experts.substitution(number, before, after, file.name)
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
        assert file.read_text() == good, command
        assert len(command) < 50


def test_demonstrations_end_solved(bench) -> None:
    environment = bench.environment

    async def show(sandbox: Sandbox) -> list[experts.Demonstration]:
        shown = []
        for number, instance in enumerate(INSTANCES[:12]):
            task = environment.task(instance)
            await sandbox.exec("find . -mindepth 1 -delete", timeout_s=20)
            await environment.prepare(task, sandbox)
            rng = random.Random(number)
            shown.append(await experts.demonstrate(task, sandbox, environment, rng))
            if shown[-1].reward:
                patches[task.task_id] = (task, await environment.collect(task, sandbox))
        return shown

    patches: dict = {}
    shown = bench.in_sandbox(environment.task(INSTANCES[0]), show)
    assert sum(d.reward for d in shown) >= 11
    for demonstration in shown:
        assert demonstration.turns[-1] == ("submit", "")
        assert all(environment.action(command) for command, _ in demonstration.turns[:-1])
        assert all(observation for _, observation in demonstration.turns[:-1])
    for task, submission in list(patches.values())[:3]:
        assert bench.verdicts(task, {"": submission.patch})[""].reward == 1.0


def test_the_same_seed_writes_the_same_demonstrations() -> None:
    outs = [io.StringIO(), io.StringIO()]
    for out, parallel in zip(outs, (1, 3), strict=True):
        written, _ = asyncio.run(experts.build(out, count=8, seed=3, parallel=parallel))
        assert written == 8
    assert outs[0].getvalue() == outs[1].getvalue()
    lines = [json.loads(line) for line in outs[0].getvalue().splitlines()]
    bundled = {i.instance_id for s in ("train", "eval") for i in MiniSource().instances(s)}
    assert not {line["task_id"] for line in lines} & bundled
    assert all(line["reward"] == 1.0 for line in lines)
    sites = [t.site for t, _ in itertools.islice(generate_instances("demo", 3), 12)]
    assert all(split_of(site) == "demo" for site in sites)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["count=3"], "out=FILE is missing"), (["out=x", "size=3"], "unknown argument 'size=3'")],
)
def test_wrong_arguments_exit_two(arguments: list[str], said: str, capsys) -> None:
    assert experts.main(arguments) == 2
    assert said in capsys.readouterr().err
