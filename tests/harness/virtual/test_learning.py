"""Real learning in virtual time: real tokens, commands, verdicts and gradients at charged times."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from safetensors.torch import load_file

from environments.swebench.environment import SweBench
from harness.agents import scripted
from harness.charged import parts as charged_parts
from harness.charged.environment import ChargedEnvironment
from harness.charged.lives import lived, per_turn
from harness.charged.parts import open_charged
from harness.composition import compose
from harness.config import RolloutConfig
from harness.display import Display
from harness.experiment import execute
from harness.interrupt import run_async
from harness.job import check
from harness.policy.load import resolve
from harness.protocols import Trajectory, UsageError
from harness.records import SCHEMA_PATH
from harness.relearn import relearn
from harness.rollout import Rollouts
from harness.virtual import VirtualClock

SMALL = (
    "env=swebench_virtual", "hardware=8xb200", "workload=swebench_verified", "tracking=none",
    "budget.limit=2", "rollout.group_size=4", "rollout.groups_per_batch=2",
    "evaluation.initial=false", "evaluation.tasks=2", "evaluation.samples_per_task=1",
)  # fmt: skip
STREAM = ("schedule=stream", "parity.every=2", "parity.permutations=8")
FILES = (
    "updates.csv", "trajectories.jsonl", "evaluation.jsonl", "learner.jsonl", "timeline.json"
)  # fmt: skip


class Run:
    """A finished run's folder."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        config = compose([*SMALL, *overrides])
        check(config)
        folder.mkdir(parents=True)
        self.folder = folder
        self.said = io.StringIO()
        self.config = config
        self.summary = execute(config, folder, Display(self.said))
        self.lines = [json.loads(line) for line in self.text("trajectories.jsonl").splitlines()]
        self.rows = list(csv.DictReader(io.StringIO(self.text("updates.csv"))))

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    @property
    def weights(self) -> bytes:
        (path,) = (self.folder / "checkpoints").glob("weights-*.safetensors")
        return path.read_bytes()

    def tokens(self) -> dict[str, Any]:
        return {line["trajectory_id"]: line["token_ids"] for line in self.lines}

    def moved(self, other: Path) -> float:
        """Euclidean distance of its weights from others."""
        (path,) = (self.folder / "checkpoints").glob("weights-*.safetensors")
        own, theirs = load_file(path), load_file(other)
        return sum(float((own[k] - theirs[k]).double().square().sum()) for k in own) ** 0.5


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    where = tmp_path_factory.mktemp("runs")
    wanted = {
        "sync": ("schedule=sync", "evaluation.final=false"),
        "stream": STREAM,
        "async": ("schedule=async", "schedule.max_staleness=1", "evaluation.final=false"),
    }
    return {name: Run(where / name, *overrides) for name, overrides in wanted.items()}


def took_s(run: Run) -> float:
    """Virtual seconds of its updates."""
    return sum(float(row["per_update_s"]) for row in run.rows)


@pytest.mark.parametrize("name", ["sync", "stream", "async"])
def test_a_run_learns_and_says_that_its_time_is_virtual(name: str, runs: dict[str, Run]) -> None:
    run = runs[name]
    jsonschema.validate(json.loads(run.text("summary.json")), json.loads(SCHEMA_PATH.read_text()))
    assert (run.summary["clock"], run.summary["engine"], run.summary["sandbox"]) == (
        "virtual", "torch", "bubblewrap",
    )  # fmt: skip
    assert run.summary["hardware"].startswith("VIRTUAL simulated 8xB200")
    shown = [line for line in run.said.getvalue().splitlines() if line.strip()]
    assert shown and all(line.startswith("VIRTUAL") for line in shown)
    boxes = run.summary["sandboxes"]
    assert boxes["created"] == boxes["removed"] > 16 and boxes["leaked"] == 0
    assert (run.summary["accuracy"]["final"] is not None) == (name == "stream")
    assert {line["reward"] for line in run.lines} == {0.0, 1.0}
    assert any(float(row["gradient_norm"]) > 0 for row in run.rows)
    assert run.moved(resolve("tiny") / "model.safetensors") > 0
    # What was trained on is the policy's own; what it took is the workload's.
    assert max(len(line["token_ids"]) for line in run.lines) <= 640
    assert float(run.rows[0]["rollout_s"]) > 60


def test_a_slower_machine_leaves_the_same_bytes(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One real command at a time: everything ends later, and in another order."""
    monkeypatch.setattr(charged_parts, "_COMMANDS", 1)
    again = Run(tmp_path / "again", *STREAM)
    for name in FILES:
        assert again.text(name) == runs["stream"].text(name), name
    assert again.weights == runs["stream"].weights


def test_streaming_learns_what_the_synchronous_schedule_learns_in_less_time(
    runs: dict[str, Run],
) -> None:
    sync, stream = runs["sync"], runs["stream"]
    assert stream.tokens() == sync.tokens()
    gap = stream.moved(next((sync.folder / "checkpoints").glob("weights-*.safetensors")))
    assert gap <= 1e-3 * sync.moved(resolve("tiny") / "model.safetensors")
    assert stream.summary["parity"]["checked"] == 1 and stream.summary["parity"]["ok"]
    assert took_s(stream) < took_s(sync)


def test_asynchronous_training_is_as_stale_as_it_says(runs: dict[str, Run]) -> None:
    run = runs["async"]
    ages = {
        int(row["version"]) - 1 - span[0]
        for row in run.rows
        for line in run.lines
        if str(line["group"]) in row["groups"].split()
        for span in line["version_spans"]
    }
    assert max(ages) == run.summary["staleness"]["max"] == 1
    assert run.summary["staleness"]["violations"]["tokens"] == 0
    assert took_s(run) < took_s(runs["sync"])


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_commands_and_verifiers_are_real(agent: str, reward: float, tmp_path: Path) -> None:
    """The gold patch is applied by a command, and judged by hidden tests."""
    config = compose(list(SMALL))
    check(config)
    clock = VirtualClock()

    async def main() -> Trajectory | None:
        async with open_charged(config, clock, "test", tmp_path, say=lambda line: None) as parts:
            environment: Any = parts.environment
            rollouts = Rollouts(
                environment, lambda task: scripted(agent, environment, task), parts.provider, clock,
                config.rollout, 0.0, meet=lambda task, t: environment.meet(task, 0, t.index, 0),
            )  # fmt: skip
            return await rollouts.run(environment.tasks("train")[0], 0, 0, 0, lambda event: None)

    trajectory = clock.run(main())
    assert trajectory is not None and trajectory.reward == reward
    plan = lived(charged(config).meet(trajectory_task(), 0, 0, 0))[1]
    commands = [turn.exec_s for turn in trajectory.turns[:-1]]
    assert len(commands) == (agent == "oracle")
    assert commands == pytest.approx([turn.tool_s for turn in plan.turns[: len(commands)]])
    assert (trajectory.sandbox_start_s, trajectory.verify_s) == pytest.approx(
        (plan.start_s, plan.verify_s)
    )


def trajectory_task() -> Any:
    return SweBench().tasks("train")[0]


def charged(config: Any) -> ChargedEnvironment:
    workload = per_turn(config.workload, RolloutConfig().max_turns)
    return ChargedEnvironment(SweBench(), workload, config.seed, {})


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["workload=none"], "workload=none: clock=virtual with a real environment needs one"),
        (["hardware=auto"], "hardware=auto"),
        (["engine=simulated"], "engine.name=simulated: clock=virtual with a real environment"),
        (["learner=simulated"], "learner.name=simulated: clock=virtual with a real"),
        (["sandbox=simulated"], "sandbox.kind=simulated: not under clock=virtual"),
        (["policy=simulated"], "policy.name=simulated: not under clock=virtual"),
        (["agent=oracle"], "agent.name=oracle: clock=virtual with a real environment takes policy"),
        (
            ["schedule=async", "schedule.partial_rollout=true"],
            "schedule.partial_rollout=True: clock=virtual with a real environment takes False",
        ),
        (["schedule.release=turn"], "schedule.release=turn: not under clock=virtual"),
        (["schedule.release=auto"], "schedule.release=auto: not under clock=virtual"),
        (["learner.ranks=3"], "learner.ranks=3"),
    ],
)
def test_a_contradiction_is_one_line_that_names_the_key(overrides: list[str], says: str) -> None:
    with pytest.raises(UsageError) as error:
        check(compose([*SMALL, *overrides]))
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_another_environment_is_refused() -> None:
    with pytest.raises(UsageError, match=r"env.name=terminal_bench: clock=virtual with a real"):
        check(compose(["env=terminal_bench", "clock=virtual", "hardware=8xb200"]))


@pytest.mark.slow
def test_its_learning_is_the_same_bits_in_a_process_of_its_own(runs: dict[str, Run]) -> None:
    run = runs["stream"]
    found = run_async(relearn(run.folder, run.config))
    assert found["bit_identical"], found
