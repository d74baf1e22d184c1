"""Whole runs in virtual time: the shared rollouts, budget, training and schedules."""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness.composition import compose
from harness.display import Display, closing_table
from harness.experiment import execute
from harness.job import check
from harness.protocols import UsageError
from harness.records import SCHEMA_PATH

SMALL = (
    "env=simulated", "hardware=8xb200", "workload=swebench_verified", "tracking=none",
    "budget.limit=3", "rollout.group_size=4", "rollout.groups_per_batch=3",
    "workload.turns.median=8",
)  # fmt: skip


class Run:
    """A finished run's folder."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        config = compose([*SMALL, *overrides])
        check(config)
        self.folder = folder
        folder.mkdir(parents=True)
        self.said = io.StringIO()
        self.config = config
        self.summary = execute(config, folder, Display(self.said))
        self.lines = [json.loads(line) for line in self.text("trajectories.jsonl").splitlines()]
        self.rows = list(csv.DictReader(io.StringIO(self.text("updates.csv"))))

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def times(self) -> list[tuple[float, ...]]:
        """Of every update: when it began and ended, and its tail."""
        columns = ("started_s", "ended_s", "per_update_s", "rollout_s", "tail_s")
        return [tuple(float(row[c]) for c in columns) for row in self.rows]


SCHEDULES = {
    "sync": ("schedule=sync",),
    "sync_colocated": ("schedule=sync_colocated",),
    "one_step_off": ("schedule=one_step_off",),
    "async": ("schedule=async",),
    "async_in_flight": ("schedule=async", "schedule.partial_rollout=true"),
    **{f"stream_{r}": ("schedule=stream", f"schedule.release={r}")
       for r in ("batch", "group", "reward", "submit", "auto")},
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_runs_and_leaves_a_run_s_folder(name: str, tmp_path: Path) -> None:
    run = Run(tmp_path / "run", *SCHEDULES[name])
    summary = json.loads(run.text("summary.json"))
    jsonschema.validate(summary, json.loads(SCHEMA_PATH.read_text()))
    assert summary["status"] == "finished"
    assert summary["updates"] == len(run.rows) == 3
    assert len(run.lines) == 36
    assert (summary["clock"], summary["engine"], summary["learner"], summary["sandbox"]) == (
        "virtual", "simulated", "simulated", "simulated",
    )  # fmt: skip
    assert summary["hardware"].startswith("VIRTUAL")
    boxes = summary["sandboxes"]
    assert boxes["created"] == boxes["removed"] and boxes["leaked"] == 0
    line = run.lines[0]
    assert "token_ids" not in line and line["tokens"] > line["action_tokens"] > 0
    assert sum(end - start for _, start, end in line["version_spans"]) == line["action_tokens"]
    trace = json.loads(run.text("timeline.json"))
    assert trace["otherData"] == {"clock": "VIRTUAL", "events_left_out": 0}
    assert summary["time"]["total_s"] == pytest.approx(float(run.rows[-1]["ended_s"]))
    for shares in summary["resources"].values():
        assert sum(shares.values()) == pytest.approx(1.0)


def test_all_that_is_shown_says_virtual(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "schedule=sync")
    shown = [line for line in run.said.getvalue().splitlines() if line.strip()]
    assert len(shown) >= 5
    assert all(line.startswith("VIRTUAL") for line in shown)
    assert str(closing_table(run.summary).title).startswith("VIRTUAL")


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    settings = ("schedule=stream", "schedule.release=reward", "env.failures={exec_transport: 0.01}")
    one, same, other = (
        Run(tmp_path / name, *settings, f"seed={seed}")
        for name, seed in (("one", 0), ("same", 0), ("other", 1))
    )
    for name in ("updates.csv", "trajectories.jsonl", "timeline.json"):
        assert one.text(name) == same.text(name)
        assert one.text(name) != other.text(name)


def test_three_ways_to_say_synchronous_are_one_to_the_last_bit(tmp_path: Path) -> None:
    sync = Run(tmp_path / "sync", "schedule=sync")
    stale_0 = Run(tmp_path / "stale0", "schedule=async", "schedule.max_staleness=0")
    batch = Run(tmp_path / "batch", "schedule=stream", "schedule.release=batch")
    assert sync.text("trajectories.jsonl") == stale_0.text("trajectories.jsonl")
    assert sync.text("trajectories.jsonl") == batch.text("trajectories.jsonl")
    assert sync.text("updates.csv") == batch.text("updates.csv")
    assert sync.times() == stale_0.times()


def test_what_a_life_is_does_not_depend_on_the_schedule(tmp_path: Path) -> None:
    kept = ("group", "index", "task_id", "tokens", "action_tokens", "reward", "end")

    def lives(run: Run) -> set[tuple[Any, ...]]:
        return {tuple(line[k] for k in kept) for line in run.lines}

    runs = [Run(tmp_path / n, *SCHEDULES[n]) for n in ("sync", "async_in_flight", "stream_submit")]
    assert lives(runs[0]) == lives(runs[1]) == lives(runs[2])


def test_streamed_updates_keep_their_bounds(tmp_path: Path) -> None:
    """T* <= T (math.md section 3), whatever is released when; nothing beats the work. A row's T*
    rests on a straight line through the passes' costs, and these bend: within two thousandths
    (test_rungs.py has the bound on costs that are known)."""
    for name, seed in itertools.product(("group", "reward", "submit"), range(3)):
        run = Run(
            tmp_path / f"{name}{seed}", "schedule=stream", f"schedule.release={name}",
            f"seed={seed}", "hardware.train_efficiency=0.05",
        )  # fmt: skip
        for row in run.rows:
            assert float(row["t_star_s"]) <= float(row["t_s"]) * 1.002
        (learner,) = {json.loads(run.text("summary.json"))["time"]["learner_busy_s"]}
        assert learner <= run.config.learner.ranks * run.summary["time"]["training_s"] + 1e-6


def test_failures_are_retried_and_a_group_past_the_limit_is_dropped(tmp_path: Path) -> None:
    run = Run(
        tmp_path / "run", "schedule=stream", "schedule.release=submit", "rollout.retries=1",
        "env.failures={start: 0.05, exec_transport: 0.02, parser: 0.2}", "budget.limit=6",
    )  # fmt: skip
    errors = run.summary["infrastructure_errors"]
    assert set(errors) == {"start", "exec_transport", "parser"}
    lost = [line for line in run.lines if line["infrastructure_error"]]
    assert run.summary["trajectories_lost"] == len(lost) > 0
    assert all(line["reward"] is None for line in lost)
    assert any(line["attempt"] == 1 and line["reward"] is not None for line in run.lines)
    assert sum(int(row["groups_dropped"]) for row in run.rows) > 0
    assert run.summary["sandboxes"]["leaked"] == 0


@pytest.mark.parametrize("kind", ["wall_clock_s", "device_s"])
def test_a_budget_of_time_is_of_virtual_seconds(kind: str, tmp_path: Path) -> None:
    limit = 1500 * (8 if kind == "device_s" else 1)
    run = Run(tmp_path / "run", "schedule=sync", f"budget.kind={kind}", f"budget.limit={limit}")
    assert run.summary["time"]["training_s"] == pytest.approx(1500)
    assert run.summary["budget"]["spent"] == pytest.approx(limit)
    assert run.summary["updates"] == len(run.rows) > 0


def test_colocated_engine_and_learner_share_all_devices(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "schedule=sync_colocated")
    assert run.summary["devices"]["total"] == 8
    assert (run.config.engine.replicas, run.config.learner.ranks) == (8, 8)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["env=simulated", "engine=torch"], "engine.name=torch: env=simulated runs with"),
        (["env=simulated", "learner=torch"], "learner.name=torch: env=simulated runs with"),
        (["env=simulated", "sandbox=docker"], "sandbox.kind=docker: env=simulated runs with"),
        (["env=simulated", "clock=wall"], "clock.kind=wall: env=simulated runs with"),
        (["env=swebench", "clock=virtual"], "workload=none: clock=virtual with a real environment"),
        (["env=swebench", "engine=simulated"], "engine.name=simulated: env.name=swebench does"),
        (["env=simulated", "hardware=8xb200"], "workload=none: env=simulated has no tasks"),
        (["env=simulated", "workload=math"], "hardware=auto"),
        ([*SMALL, "parity.every=1"], "parity.every=1: env=simulated takes 0 alone"),
        ([*SMALL, "evaluation.initial=true"], "evaluation.initial=True: env=simulated takes"),
        ([*SMALL, "agent=nop"], "agent.name=nop: env=simulated takes policy alone"),
        ([*SMALL, "env.failures.start=1.5"], "env.failures.start=1.5: must be from 0 to 1"),
        ([*SMALL, "learner.ranks=3"], "learner.ranks=3"),
    ],
)
def test_a_contradiction_is_one_line_that_names_the_key(overrides: list[str], says: str) -> None:
    with pytest.raises(UsageError) as error:
        check(compose(overrides))
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)
